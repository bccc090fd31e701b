// The emulated devices of the process and each thread's current one. Private to the stand-ins.
#pragma once

#include <driver_types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace brigade::cuda_emulation {

inline constexpr int kMaxDevices = 16;

// cudaSuccess, cudaErrorNoDevice or cudaErrorInsufficientDriver.
cudaError_t driver_state();
int device_count();
int current_device();
size_t device_memory_bytes();

// A number from the environment, or `otherwise`.
uint64_t environment_number(const char* name, uint64_t otherwise);

struct AtomicCounters {
  std::atomic<uint64_t> kernels{0}, blocking_copies{0}, pageable_copies{0}, memory_calls{0},
      graph_launches{0}, library_calls{0}, bytes_to_host{0};
};
AtomicCounters& count();

}  // namespace brigade::cuda_emulation
