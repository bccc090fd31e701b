// What gpu.cuh's launch() is when the host compiler builds a kernel: copies the
// arguments, as a device launch does, and queues the kernel on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

#include "tests/cuda_emulation/shim/kernel_run.h"

namespace brigade::cuda_emulation {

// Refuses what the runtime refuses (limits, a stream that does not exist) and what it would run
// into (an 8-byte word of an argument that points to plain host memory); then queues. `words` is
// the memory of the arguments.
cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t stream, const void* words, size_t bytes);

// Where each parameter lies among the arguments; the last number is the size of all.
template <typename... Parameters>
constexpr std::array<size_t, sizeof...(Parameters) + 1> argument_offsets() {
  std::array<size_t, sizeof...(Parameters) + 1> offsets{};
  size_t next = 0, index = 0;
  ((next = (next + alignof(Parameters) - 1) / alignof(Parameters) * alignof(Parameters),
    offsets[index++] = next, next += sizeof(Parameters)),
   ...);
  offsets[index] = (next + 7) / 8 * 8;
  return offsets;
}

template <size_t kBytes>
struct ArgumentBytes {
  alignas(16) unsigned char bytes[kBytes + 8] = {};
};

// Padding becomes zero: what is left over there could look like an address.
template <typename T>
void put_argument(unsigned char* to, T value) {
  if constexpr (std::is_class_v<T>) __builtin_clear_padding(&value);
  std::memcpy(to, &value, sizeof(T));
}

template <typename... Parameters, size_t... kIndex>
void call_kernel(void (*kernel)(Parameters...), [[maybe_unused]] const unsigned char* data,
                 std::index_sequence<kIndex...>) {
  [[maybe_unused]] constexpr auto kOffsets = argument_offsets<Parameters...>();
  kernel(*reinterpret_cast<const std::remove_cvref_t<Parameters>*>(data + kOffsets[kIndex])...);
}

template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "every parameter needs an argument");
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel arguments are copied as bytes");
  constexpr auto kOffsets = argument_offsets<Parameters...>();
  static_assert(kOffsets.back() <= 4096, "a kernel takes at most 4 KiB of arguments");
  auto values = std::make_shared<ArgumentBytes<kOffsets.back()>>();
  size_t index = 0;
  (put_argument<Parameters>(values->bytes + kOffsets[index++], static_cast<Parameters>(arguments)),
   ...);
  KernelLaunch launch;
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.run_thread = [](const void* entry, const void* data) {
    call_kernel(reinterpret_cast<void (*)(Parameters...)>(const_cast<void*>(entry)),
                static_cast<const unsigned char*>(data), std::index_sequence_for<Parameters...>());
  };
  launch.grid = grid;
  launch.block = block;
  launch.dynamic_shared_bytes = shared_bytes;
  const void* const words = values->bytes;
  launch.arguments = std::shared_ptr<const void>(values, words);
  return queue_kernel(std::move(launch), stream, words, kOffsets.back());
}

}  // namespace brigade::cuda_emulation

// The overload that CUDA's headers give to nvcc alone.
template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* function, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(function), attribute, value);
}
