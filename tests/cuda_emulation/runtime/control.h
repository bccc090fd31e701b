// What tests set and read of the stand-in runtime, beside the environment:
//   BRIGADE_EMULATION_DEVICES    how many devices (default 2); 0: no device; none: no driver
//   BRIGADE_EMULATION_MEMORY_MB  of each device (default 8192)
//   BRIGADE_EMULATION_SHARED_KB  what a block may opt in to, as a device says it (default 227)
//   BRIGADE_EMULATION_SEED       order of threads and delays (see shim/kernel_run.h)
//   BRIGADE_EMULATION_DELAY_US   longest delay before a piece of a stream's work (default 100)
//   BRIGADE_EMULATION_DELAY_EVERY  one piece in so many is delayed (default 16; 0: none)
//   BRIGADE_EMULATION_HOST_ACCESS  fault (default) or allow: host code that touches device memory
//                                while no stream has work
// Any thread.
#pragma once

#include <driver_types.h>

#include <cstdint>

#include "tests/cuda_emulation/shim/kernel_run.h"

namespace brigade::cuda_emulation {

// Delays one piece of work in `every` by up to `longest_us`, drawn from the seed. 0: never.
void set_stream_delay(unsigned longest_us, unsigned every);

// The next kernel on any stream fails as if it had faulted.
void inject_fault(cudaError_t error);
// Forgets faults, which a real device does not.
void reset_faults();

struct Counters {
  uint64_t kernels = 0;          // run, those of graphs included
  uint64_t blocking_copies = 0;  // device to pageable memory: the call waited for its stream
  uint64_t pageable_copies = 0;  // from pageable memory, which the driver stages itself
  uint64_t memory_calls = 0;     // that allocate or free, device and pinned memory
  uint64_t graph_launches = 0;
  uint64_t library_calls = 0;  // cuBLAS products run
  uint64_t bytes_to_host = 0;  // copied there from device memory
};
Counters counters();

}  // namespace brigade::cuda_emulation
