// The transport between processes on CPUs: UCX tagged messages over TCP, shared memory where both
// ends show the same host and namespaces, RDMA by configuration. Peers are reached by address
// blobs; a lost peer is an event, never an abort. One progress thread per transport.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::expert_parallel {

struct UcxOptions {
  TransportOptions transport;
  // Shared memory for peers on the same host and in the same namespaces.
  bool shared_memory = true;
  // Interfaces to use, e.g. "eth0" or "mlx5_0:1"; empty: all of them.
  std::string net_devices;
  // Replaces the choice of UCX transports, e.g. "rc,tcp,self" for RDMA; empty: ours.
  std::string transports;
};

// FAILED_PRECONDITION or INTERNAL with UCX's own words when it cannot start.
absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options);

// UCX's description of the lanes to a peer; for status pages and tests. Empty for other transports.
std::string ucx_lanes(const Transport& transport, PeerId peer);

}  // namespace brigade::expert_parallel
