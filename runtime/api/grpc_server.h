// The server's door: listens (loopback by default), answers Generate, GenerateOnce, GetStatus,
// health and reflection, and drains on stop. Up before the model is loaded, so that probes are
// answered from the first moment. start() and the stop functions are called by one thread; calls
// run on gRPC's.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/api/door_options.h"
#include "runtime/api/request_observer.h"
#include "runtime/api/serving_state.h"

namespace brigade::runtime {

class GrpcServer {
 public:
  // `state` and `observer` outlive the server. INVALID_ARGUMENT for options that do not hold
  // together; UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> start(const DoorOptions& options,
                                                           ServingState* state,
                                                           RequestObserver* observer);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  int port() const;
  // host:port as a client would dial it.
  std::string address() const;

  // Refuses new calls and lets open ones finish; true when all had by the deadline. Health and
  // status still answer.
  bool drain(absl::Time deadline);

  // Ends what is still open with UNAVAILABLE and closes the port. May be called twice.
  void stop();

 private:
  struct Parts;
  explicit GrpcServer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
