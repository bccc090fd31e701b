#include "kernels/cuda/probe.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kLeastMajor = 8;  // the oldest architecture in the module: sm_80
constexpr char kUseCpu[] = "; use --device cpu, or a machine with a GPU";

std::string version_text(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status no_gpu(cudaError_t error) {
  cudaGetLastError();
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  cudaGetLastError();
  if (error == cudaErrorInsufficientDriver && driver == 0) {
    return absl::FailedPreconditionError(absl::StrCat("no NVIDIA driver on this machine", kUseCpu));
  }
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver of this machine is for CUDA ", version_text(driver),
        ", the module needs ", version_text(runtime), "; update the driver or use --device cpu"));
  }
  if (error == cudaErrorNoDevice) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver shows no GPU to this process", kUseCpu));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the GPUs of this machine cannot be used: cudaGetDeviceCount: ", cudaGetErrorName(error),
      ": ", cudaGetErrorString(error), kUseCpu));
}

// Streams share the queues in which the hardware takes work. With CUDA's default of 8, work may
// wait behind a transfer of another stream that itself waits for a peer. Read once, when CUDA
// starts.
void ask_for_queues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

absl::StatusOr<std::vector<CudaDeviceInfo>> probe() {
  ask_for_queues();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return no_gpu(error);
  if (count == 0) return no_gpu(cudaErrorNoDevice);
  std::vector<CudaDeviceInfo> found(static_cast<size_t>(count));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties{};
    RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, ordinal),
                                "cudaGetDeviceProperties", "GPU ", ordinal));
    CudaDeviceInfo& info = found[static_cast<size_t>(ordinal)];
    info.ordinal = ordinal;
    info.name = properties.name;
    info.major = properties.major;
    info.minor = properties.minor;
    info.memory_bytes = properties.totalGlobalMem;
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<CudaDeviceInfo>> devices() {
  static const absl::StatusOr<std::vector<CudaDeviceInfo>> found = probe();
  return found;
}

absl::StatusOr<CudaDeviceInfo> usable_device(int ordinal) {
  ASSIGN_OR_RETURN(const std::vector<CudaDeviceInfo> found, devices());
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= found.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("device cuda:", ordinal, " does not exist: this process sees ", found.size(),
                     found.size() == 1 ? " GPU, cuda:0" : " GPUs, numbered from 0"));
  }
  const CudaDeviceInfo& info = found[static_cast<size_t>(ordinal)];
  if (info.major < kLeastMajor) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device cuda:", ordinal, " (", info.name, ") has compute capability ", info.major, ".",
        info.minor, "; the module needs ", kLeastMajor, ".0 or later"));
  }
  return info;
}

}  // namespace brigade::kernels::cuda
