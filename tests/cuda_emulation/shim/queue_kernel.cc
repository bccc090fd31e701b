#include <cstdio>

#include "tests/cuda_emulation/shim/kernel_launch.h"

namespace brigade::cuda_emulation {

cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t, const void*, size_t) {
  if (const auto fault = run_kernel(launch, schedule_seed())) {
    std::fprintf(stderr, "cuda emulation: %s\n", fault->message.c_str());
    return fault->kind == FaultKind::kIllegalAddress ? cudaErrorIllegalAddress
                                                     : cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace brigade::cuda_emulation
