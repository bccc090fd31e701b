// What gpu.cuh's launch() is when the host compiler builds a kernel: copies the
// arguments, as a device launch does, and queues the kernel on its stream.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/cuda_emulation/shim/argument_pointers.h"
#include "tests/cuda_emulation/shim/kernel_run.h"

namespace brigade::cuda_emulation {

// Refuses what the runtime refuses (limits, a stream that does not exist) and what it would run
// into (an argument that points to plain host memory); then queues.
cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t stream);

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

template <typename T>
void put_argument(unsigned char* to, const T& value) {
  std::memcpy(to, &value, sizeof(T));
}

// The offsets of all pointers among the arguments.
template <typename... Parameters>
std::span<const size_t> argument_pointers() {
  static const std::vector<size_t> places = [] {
    std::vector<size_t> found;
    [[maybe_unused]] constexpr auto kOffsets = argument_offsets<Parameters...>();
    [[maybe_unused]] size_t index = 0;
    (add_pointers<Parameters>(kOffsets[index++], &found), ...);
    return found;
  }();
  return places;
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
  launch.arguments = std::shared_ptr<const void>(values, values->bytes);
  launch.pointers = argument_pointers<Parameters...>();
  return queue_kernel(std::move(launch), stream);
}

}  // namespace brigade::cuda_emulation

// The overload that CUDA's headers give to nvcc alone.
template <typename Function>
cudaError_t cudaFuncSetAttribute(Function* function, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(function), attribute, value);
}
