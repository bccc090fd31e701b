// What gpu.cuh's launch() is when the host compiler builds a kernel: copies the
// arguments, as a device launch does, and queues the kernel on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <tuple>
#include <type_traits>

#include "tests/cuda_emulation/shim/kernel_run.h"

namespace brigade::cuda_emulation {

// Refuses what the runtime refuses (limits, a stream that does not exist) and what it would run
// into (an 8-byte word of an argument that points to plain host memory); then queues. `words` is
// the memory of the arguments.
cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t stream, const void* words, size_t bytes);

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel arguments are copied as bytes");
  static_assert((sizeof(Parameters) + ... + 0) <= 4096,
                "a kernel takes at most 4 KiB of arguments");
  using Values = std::tuple<Parameters...>;
  auto values = std::make_shared<Values>(static_cast<Parameters>(arguments)...);
  KernelLaunch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.run_thread = [](const void* entry, const void* data) {
    std::apply(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(entry)),
               *static_cast<const Values*>(data));
  };
  launch.grid = grid;
  launch.block = block;
  launch.dynamic_shared_bytes = shared_bytes;
  const void* const words = values.get();
  launch.arguments = std::move(values);
  return queue_kernel(std::move(launch), stream, words, sizeof(Values));
}

}  // namespace brigade::cuda_emulation

// The overload that CUDA's headers give to nvcc alone.
template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* function, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(function), attribute, value);
}
