// The scheduler behind device_thread.h: which emulated thread runs next, who waits where. One per
// launch and OS thread. Private to the shim.
#pragma once

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "tests/cuda_emulation/shim/device_thread.h"
#include "tests/cuda_emulation/shim/fiber.h"
#include "tests/cuda_emulation/shim/kernel_run.h"
#include "tests/cuda_emulation/shim/shared_memory.h"

namespace brigade::cuda_emulation {

// xorshift64*: a few cycles a draw.
class ScheduleRandom {
 public:
  explicit ScheduleRandom(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x1234567u) {}
  uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  // Uniform enough in [0, bound).
  uint32_t below(uint32_t bound) {
    return static_cast<uint32_t>(((next() >> 32) * uint64_t{bound}) >> 32);
  }

 private:
  uint64_t state_;
};

struct Exchange {
  LaneValues values;  // .lanes: who has arrived
  WarpOp op;
  uint32_t mask;
  size_t bytes;
  Site site;
  int readers = 0;
};

enum class Waiting { kNo, kBarrier, kExchange, kYield };

struct ThreadState {
  uint3 index;
  uint32_t number;
  Fiber* fiber = nullptr;  // null: not started, or ended
  Waiting waiting = Waiting::kNo;
  Site site{"", 0};
  Exchange* exchange = nullptr;  // the last one this thread took part in
  bool completed_exchange = false;
  bool ended = false;
};

struct WarpState {
  uint32_t alive = 0;
  std::vector<Exchange*> pending;
};

class BlockRunner {
 public:
  BlockRunner(const KernelLaunch& launch, uint64_t seed, SharedMemory& shared);
  std::optional<KernelFault> run();

  int barrier(BarrierKind kind, int predicate, Site site);
  const LaneValues& exchange(WarpOp op, uint32_t mask, const void* value, size_t bytes, Site site);
  void yield();

  ThreadState& current() { return *current_; }
  WarpState& warp() { return warps_[current_->number / 32]; }
  SharedMemory& shared() { return shared_; }
  const KernelLaunch& launch() const { return launch_; }
  // To end the launch: notes why, then leaves the emulated thread for good. Two calls, because what
  // is alive on that thread's stack in the second is never destroyed. Also from a signal handler.
  void note_fault(cudaError_t error, const std::string& what);
  [[noreturn]] void abandon();
  std::string place() const;  // "kernel k, block (0,0,0), thread (1,0,0)"
  bool in_stack_guard(const void* address) const;

 private:
  static void fiber_entry(boost::context::detail::transfer_t transfer);
  void fiber_loop();
  void run_block(uint3 block);
  void begin_block(uint3 block);
  void end_thread();
  bool start_next_first();
  void wait_for_others(Waiting what);
  void run_others();
  void resume(ThreadState& thread);
  void switch_to(Fiber& fiber);
  Fiber& idle_fiber();
  ThreadState* take_ready();
  void release_barrier();
  void release_exchange(Exchange& done, uint32_t except_lane);
  void leave_exchange(ThreadState& thread);
  Exchange& join_exchange(WarpOp op, uint32_t mask, size_t bytes, Site site);
  void complete_exchanges_of_ended_lane();
  void note_divergence(const ThreadState& other, Site site);
  void note_deadlock();

  const KernelLaunch launch_;
  const uint64_t seed_;
  ScheduleRandom random_;
  SharedMemory& shared_;

  Fiber main_;
  Fiber* running_ = &main_;
  std::deque<Fiber> fibers_;
  std::vector<Fiber*> idle_;

  std::vector<ThreadState> threads_;
  std::vector<uint32_t> order_;  // of starting
  size_t next_start_ = 0;
  std::vector<ThreadState*> ready_;
  ThreadState* current_ = nullptr;
  uint32_t alive_ = 0;

  std::vector<ThreadState*> at_barrier_;
  BarrierKind barrier_kind_ = BarrierKind::kPlain;
  int barrier_count_ = 0;   // of true predicates so far
  int barrier_result_ = 0;  // of the last one released
  uint32_t barrier_arrived_ = 0;

  std::vector<WarpState> warps_;
  std::deque<Exchange> exchange_storage_;
  std::vector<Exchange*> free_exchanges_;

  std::optional<KernelFault> fault_;
};

// The runner of this OS thread's launch, or null.
BRIGADE_EMULATION_TLS extern constinit thread_local BlockRunner* current_runner;

}  // namespace brigade::cuda_emulation
