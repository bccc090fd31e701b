// The port where workers join: one gRPC stream an expert worker, between which and the cluster host
// messages travel as plain values; beside it the draft workers' service, if there is one. start()
// and stop() by one thread; stop() may be called twice.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/api/door_options.h"
#include "runtime/cluster/cluster_host.h"

namespace grpc {
class Service;
}

namespace brigade::runtime {

class ControlServer {
 public:
  // `host` and `drafts` outlive the server. INVALID_ARGUMENT for a door that does not hold together
  // (an address of other hosts without TLS and the workers' token, ...); UNAVAILABLE when it cannot
  // be bound.
  static absl::StatusOr<std::unique_ptr<ControlServer>> start(const DoorOptions& door,
                                                              ClusterHost& host,
                                                              grpc::Service* drafts = nullptr);
  // For draft workers alone.
  static absl::StatusOr<std::unique_ptr<ControlServer>> start(const DoorOptions& door,
                                                              grpc::Service& drafts);
  ~ControlServer();

  int port() const;
  // host:port as a worker would dial it.
  std::string address() const;
  // Ends all streams.
  void stop();

 private:
  struct Parts;
  explicit ControlServer(std::unique_ptr<Parts> parts);
  static absl::StatusOr<std::unique_ptr<ControlServer>> listen(const DoorOptions& door,
                                                               std::unique_ptr<Parts> parts,
                                                               grpc::Service* drafts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::runtime
