// NCCL as the binaries see it: a second entry point of brigade_cuda.so, where that was built with
// NCCL. Nothing here includes CUDA's or NCCL's headers.
//
// Threads: find_nccl_module() any; the transport as in transport.h.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "expert_parallel/transport/transport.h"
#include "kernels/core/device_cuda.h"

namespace brigade::expert_parallel {

// What travels behind each head on the host transport.
inline constexpr size_t kNcclTrailerBytes = 16;

struct NcclOptions {
  // The host transport is made with the same window, and max_message_bytes + kNcclTrailerBytes.
  TransportOptions transport;
  // Of a link's two ends exactly one makes the ids of its communicators: the coordinator's.
  bool makes_ids = false;
  // For both ends to have made their communicators, after connect().
  absl::Duration join_deadline = absl::Seconds(30);
  // For a body to arrive or leave once its head has. Longer than the peer's thread ever computes.
  absl::Duration body_deadline = absl::Seconds(60);
  int blocks = 4;  // thread blocks of each transfer, which wait on the GPU for their peer
};

// What the entry point returns. Lives in the module, which is never closed.
struct NcclModule {
  uint32_t layout = 0;  // kNcclModuleLayout of its build
  // "2.28.9"; FAILED_PRECONDITION when the library is too old, INTERNAL when it does not say.
  absl::StatusOr<std::string> (*version)() = nullptr;
  // Heads travel over `host`, which is taken, bodies between GPUs. `device`, of this module,
  // outlives the transport. INVALID_ARGUMENT: `host` takes too short messages.
  absl::StatusOr<std::unique_ptr<Transport>> (*create)(std::unique_ptr<Transport> host,
                                                       kernels::CudaDevice& device,
                                                       const NcclOptions& options) = nullptr;
};
inline constexpr uint32_t kNcclModuleLayout = 1;
inline constexpr char kNcclModuleEntry[] = "brigade_nccl_module";
using NcclModuleEntry = const NcclModule* (*)();

// NOT_FOUND: the module was built without NCCL. FAILED_PRECONDITION: it is of another build.
absl::StatusOr<const NcclModule*> find_nccl_module(const kernels::OpenCudaModule& cuda);

}  // namespace brigade::expert_parallel
