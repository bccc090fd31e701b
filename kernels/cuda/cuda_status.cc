#include "kernels/cuda/cuda_status.h"

namespace brigade::kernels::cuda {
namespace {

absl::StatusCode code_of(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
    case cudaErrorNoKernelImageForDevice:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status failed_call(cudaError_t error, const char* call, const std::string& arguments) {
  cudaGetLastError();
  return absl::Status(code_of(error),
                      absl::StrCat(call, "(", arguments, "): ", cudaGetErrorName(error), ": ",
                                   cudaGetErrorString(error)));
}

}  // namespace brigade::kernels::cuda
