// What an emulated CUDA thread can ask of its block: its indices, barriers, exchanges within a
// warp, shared memory. Called by kernel code only, while a launch runs on this OS thread.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

// The built-in variables of CUDA C++, set before a thread goes on. initial-exec: read in every
// loop.
#define BRIGADE_EMULATION_TLS [[gnu::tls_model("initial-exec")]]
BRIGADE_EMULATION_TLS extern constinit thread_local uint3 threadIdx;
BRIGADE_EMULATION_TLS extern constinit thread_local uint3 blockIdx;
BRIGADE_EMULATION_TLS extern constinit thread_local dim3 blockDim;
BRIGADE_EMULATION_TLS extern constinit thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace brigade::cuda_emulation {

// Where a thread waits, for reports. As a default argument it is the caller's own line.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class BarrierKind { kPlain, kCount, kAnd, kOr };
// All threads of the block that have not ended. Returns the reduction of `predicate` (0: kPlain).
// Threads that wait at different lines or in different kinds are a fault.
int block_barrier(BarrierKind kind, int predicate, Site site);

enum class WarpOp { kSync, kShuffle, kVote, kMatch, kReduce, kMatrix };
inline constexpr size_t kLaneBytes = 16;
inline constexpr uint32_t kNoLane = 0xFFFFFFFFu;

// What the lanes of one warp operation brought along. A lane that took no part reads as 0xFF.
struct LaneValues {
  uint32_t lanes = 0;  // who took part
  alignas(16) unsigned char bytes[32][kLaneBytes];
};
// Waits for the lanes of `mask` that have not ended, each with its own `bytes` (at most
// kLaneBytes). The result stays valid until this thread's next call. A lane outside its own mask,
// or lanes with different operations or sizes, are a fault.
const LaneValues& warp_exchange(WarpOp op, uint32_t mask, const void* value, size_t bytes,
                                Site site);
// True in one of the lanes of the last exchange, before any other lane goes on.
bool completed_exchange();

int lane_id();
uint32_t active_lanes();  // the lanes of this warp that have not ended

void* dynamic_shared();
size_t dynamic_shared_bytes();
// One object of the block, the same for all its threads; `key` tells declarations apart.
void* static_shared(size_t bytes, size_t alignment, const void* key);

// Lets other threads go on: inside loops that wait for one of them.
void yield_thread();
[[noreturn]] void device_trap(const char* reason, Site site = Site::here());

}  // namespace brigade::cuda_emulation

// Last parameter of a function that reports its caller's line.
#define BRIGADE_SITE ::brigade::cuda_emulation::Site site = ::brigade::cuda_emulation::Site::here()
