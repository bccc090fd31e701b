// The module's entry point: the one symbol that the binaries look up.
#include "kernels/core/build_version.h"
#include "kernels/core/device_cuda.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/probe.h"

extern "C" __attribute__((visibility("default"))) const brigade::kernels::CudaModule*
brigade_cuda_module() {
  namespace kernels = brigade::kernels;
  static const kernels::CudaModule module = {
      .layout = kernels::kCudaModuleLayout,
      .version = brigade::kBuildVersion,
      .devices = &kernels::cuda::devices,
      .create_device = &kernels::cuda::create_device,
  };
  return &module;
}
