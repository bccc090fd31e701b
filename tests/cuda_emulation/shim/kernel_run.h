// Runs one kernel launch: its blocks one after another on the calling OS thread, each CUDA thread
// of a block as a fiber that runs until it waits for others. The order of blocks, of threads and of
// who goes on after a barrier is drawn from a seed. Called by a stream's thread; nothing here
// locks.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace brigade::cuda_emulation {

// How many bytes of shared memory a block may have; above the first only with the opt-in attribute.
inline constexpr size_t kSharedBytesDefault = size_t{48} << 10;
inline constexpr size_t kSharedBytesOptIn = size_t{227} << 10;
inline constexpr unsigned kMaxThreadsPerBlock = 1024;

// A kernel and the copies of its arguments, ready to be run once for every thread.
struct KernelLaunch {
  const void* kernel = nullptr;
  void (*run_thread)(const void* kernel, const void* arguments) = nullptr;
  std::shared_ptr<const void> arguments;
  std::span<const size_t> pointers;  // where the arguments hold addresses, in bytes
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes = 0;
  size_t allowed_shared_bytes = kSharedBytesDefault;
};

struct KernelFault {
  cudaError_t error;
  std::string message;  // names the kernel, block, thread and source line
};

// The fault that ended the launch, if one did. `seed` 0: first to last; 1: last to first; else
// random.
std::optional<KernelFault> run_kernel(const KernelLaunch& launch, uint64_t seed);

// "void scale<float>(float*, int)", for messages.
std::string kernel_name(const void* kernel);

// How a faulting address reads in messages: false when it is not the describer's.
void describe_faults_with(bool (*describe)(const void* address, char* text, size_t size));

// BRIGADE_EMULATION_SEED (default 2) until set_schedule_seed() is called. Takes effect with the
// next launch. Even seeds fill shared memory with 0xFF (NaN, -1), odd ones with 0x7E (large and
// finite).
void set_schedule_seed(uint64_t seed);
uint64_t schedule_seed();

}  // namespace brigade::cuda_emulation
