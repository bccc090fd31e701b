// The port where workers join: one gRPC stream a worker, between which and the cluster host
// messages travel as plain values. Nothing of gRPC or Protobuf shows above. start() and stop() by
// one thread; stop() may be called twice.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/api/door_options.h"
#include "runtime/cluster/cluster_host.h"

namespace brigade::runtime {

class ControlServer {
 public:
  // `host` outlives the server. INVALID_ARGUMENT for a door that does not hold together (an address
  // of other hosts without TLS and the workers' token, ...); UNAVAILABLE when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<ControlServer>> start(const DoorOptions& door,
                                                              ClusterHost& host);
  ~ControlServer();

  int port() const;
  // host:port as a worker would dial it.
  std::string address() const;
  // Ends all streams.
  void stop();

 private:
  struct Parts;
  explicit ControlServer(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
