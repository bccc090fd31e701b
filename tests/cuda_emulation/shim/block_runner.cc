#include "tests/cuda_emulation/shim/block_runner.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace brigade::cuda_emulation {
namespace {

uint32_t thread_count(dim3 extent) { return extent.x * extent.y * extent.z; }

uint3 unflatten(uint64_t number, dim3 extent) {
  return {static_cast<unsigned>(number % extent.x),
          static_cast<unsigned>(number / extent.x % extent.y),
          static_cast<unsigned>(number / extent.x / extent.y)};
}

std::string text(uint3 index) {
  char digits[48];
  std::snprintf(digits, sizeof(digits), "(%u,%u,%u)", index.x, index.y, index.z);
  return digits;
}

std::string text(Site site) { return std::string(site.file) + ":" + std::to_string(site.line); }

// In place: as they are, reversed, or shuffled.
template <typename Number>
void put_in_order(std::vector<Number>& items, uint64_t seed, ScheduleRandom& random) {
  if (seed == 0) return;
  if (seed == 1) {
    std::reverse(items.begin(), items.end());
    return;
  }
  for (size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[random.below(static_cast<uint32_t>(i))]);
  }
}

}  // namespace

constinit thread_local BlockRunner* current_runner = nullptr;

BlockRunner::BlockRunner(const KernelLaunch& launch, uint64_t seed, SharedMemory& shared)
    : launch_(launch), seed_(seed), random_(seed), shared_(shared) {
  threads_.resize(thread_count(launch.block));
  order_.resize(threads_.size());
  warps_.resize((threads_.size() + 31) / 32);
  blockDim = launch.block;
  gridDim = launch.grid;
}

std::optional<KernelFault> BlockRunner::run() {
  std::vector<uint64_t> blocks(uint64_t{launch_.grid.x} * launch_.grid.y * launch_.grid.z);
  std::iota(blocks.begin(), blocks.end(), 0);
  put_in_order(blocks, seed_, random_);
  for (const uint64_t block : blocks) {
    run_block(unflatten(block, launch_.grid));
    if (fault_) break;
  }
  return fault_;
}

void BlockRunner::begin_block(uint3 block) {
  blockIdx = block;
  shared_.begin_block(launch_.dynamic_shared_bytes, seed_ % 2 == 0 ? 0xFF : 0x7E);
  for (WarpState& warp : warps_) warp.alive = 0;
  for (uint32_t i = 0; i < threads_.size(); ++i) {
    threads_[i] = ThreadState{.index = unflatten(i, launch_.block), .number = i};
    warps_[i / 32].alive |= 1u << (i % 32);
  }
  std::iota(order_.begin(), order_.end(), 0);
  put_in_order(order_, seed_, random_);
  next_start_ = 0;
  alive_ = static_cast<uint32_t>(threads_.size());
  barrier_arrived_ = 0;
}

void BlockRunner::run_block(uint3 block) {
  begin_block(block);
  switch_to(idle_fiber());
  if (fault_) return;
  if (const std::string damage = shared_.damage(); !damage.empty()) {
    fault_ = KernelFault{cudaErrorIllegalAddress, "kernel " + kernel_name(launch_.kernel) +
                                                      ", block " + text(block) + ": " + damage};
  }
}

void BlockRunner::fiber_entry(boost::context::detail::transfer_t transfer) {
  fiber_entered(transfer);
  current_runner->fiber_loop();
}

// A fiber runs one thread after another; it is bound to one only while that thread waits.
void BlockRunner::fiber_loop() {
  running_ = idle_.back();
  idle_.pop_back();
  while (true) {
    if (next_start_ < order_.size() && (ready_.empty() || start_next_first())) {
      current_ = &threads_[order_[next_start_++]];
      threadIdx = current_->index;
      launch_.run_thread(launch_.kernel, launch_.arguments.get());
      end_thread();
      continue;
    }
    Fiber* const self = running_;
    idle_.push_back(self);
    if (ThreadState* next = take_ready()) {
      resume(*next);
    } else if (alive_ == 0) {
      switch_to(main_);
    } else {
      idle_.pop_back();
      note_deadlock();
      abandon();
    }
    running_ = self;  // switched back to as the idle fiber at the end of the list
    idle_.pop_back();
  }
}

bool BlockRunner::start_next_first() { return seed_ > 1 && (random_.next() >> 63) != 0; }

void BlockRunner::end_thread() {
  ThreadState& thread = *current_;
  leave_exchange(thread);
  thread.ended = true;
  --alive_;
  warp().alive &= ~(1u << (thread.number % 32));
  if (alive_ > 0 && barrier_arrived_ == alive_) release_barrier();
  if (!warp().pending.empty()) complete_exchanges_of_ended_lane();
}

Fiber& BlockRunner::idle_fiber() {
  if (idle_.empty()) {
    Fiber& fiber = fibers_.emplace_back();
    reset_fiber(fiber, &BlockRunner::fiber_entry);
    idle_.push_back(&fiber);
  }
  return *idle_.back();
}

void BlockRunner::switch_to(Fiber& fiber) {
  Fiber& from = *running_;
  switch_fiber(from, fiber);
  running_ = &from;
}

ThreadState* BlockRunner::take_ready() {
  if (ready_.empty()) return nullptr;
  size_t chosen = ready_.size() - 1;
  if (seed_ > 1) chosen = random_.below(static_cast<uint32_t>(ready_.size()));
  std::swap(ready_[chosen], ready_.back());
  ThreadState* const thread = ready_.back();
  ready_.pop_back();
  return thread;
}

void BlockRunner::resume(ThreadState& thread) { switch_to(*thread.fiber); }

// The current thread stops here until someone has put it on the ready list and it is its turn.
void BlockRunner::wait_for_others(Waiting what) {
  ThreadState& self = *current_;
  self.waiting = what;
  self.fiber = running_;
  run_others();
  running_ = self.fiber;
  current_ = &self;
  threadIdx = self.index;
  self.waiting = Waiting::kNo;
}

void BlockRunner::run_others() {
  if (next_start_ < order_.size() && (ready_.empty() || start_next_first())) {
    switch_to(idle_fiber());
  } else if (ThreadState* next = take_ready()) {
    if (next != current_) resume(*next);
  } else {
    note_deadlock();
    abandon();
  }
}

void BlockRunner::yield() {
  ready_.insert(ready_.begin(), current_);
  wait_for_others(Waiting::kYield);
}

int BlockRunner::barrier(BarrierKind kind, int predicate, Site site) {
  ThreadState& self = *current_;
  self.site = site;
  if (barrier_arrived_ == 0) {
    barrier_kind_ = kind;
    barrier_count_ = 0;
    at_barrier_.clear();
  } else if (const ThreadState& first = *at_barrier_.front(); kind != barrier_kind_ ||
                                                              first.site.line != site.line ||
                                                              first.site.file != site.file) {
    note_divergence(first, site);
    abandon();
  }
  ++barrier_arrived_;
  barrier_count_ += predicate != 0;
  at_barrier_.push_back(&self);
  if (barrier_arrived_ == alive_) release_barrier();
  wait_for_others(Waiting::kBarrier);
  return barrier_result_;
}

void BlockRunner::release_barrier() {
  const int arrived = static_cast<int>(barrier_arrived_);
  barrier_result_ = barrier_kind_ == BarrierKind::kCount ? barrier_count_
                    : barrier_kind_ == BarrierKind::kAnd ? barrier_count_ == arrived
                    : barrier_kind_ == BarrierKind::kOr  ? barrier_count_ > 0
                                                         : 0;
  barrier_arrived_ = 0;
  // take_ready() goes from the end when the order is fixed.
  if (seed_ == 1) {
    ready_.insert(ready_.end(), at_barrier_.begin(), at_barrier_.end());
  } else {
    ready_.insert(ready_.end(), at_barrier_.rbegin(), at_barrier_.rend());
  }
}

std::string BlockRunner::place() const {
  std::string where = "kernel " + kernel_name(launch_.kernel) + ", block " + text(blockIdx);
  if (current_ != nullptr) where += ", thread " + text(current_->index);
  return where;
}

bool BlockRunner::in_stack_guard(const void* address) const {
  return running_ != &main_ && running_->stack->overflowed_at(address);
}

void BlockRunner::note_fault(cudaError_t error, const std::string& what) {
  fault_ = KernelFault{error, place() + ": " + what};
}

// Kernels own nothing on their stacks.
void BlockRunner::abandon() {
  switch_to(main_);
  __builtin_unreachable();
}

void BlockRunner::note_divergence(const ThreadState& other, Site site) {
  note_fault(cudaErrorLaunchFailure, "divergent __syncthreads: waits at " + text(site) +
                                         " while thread " + text(other.index) + " waits at " +
                                         text(other.site));
}

void BlockRunner::note_deadlock() {
  std::string waiting;
  int listed = 0;
  for (const ThreadState& thread : threads_) {
    if (thread.ended || thread.waiting == Waiting::kNo || ++listed > 4) continue;
    waiting +=
        (listed > 1 ? ", thread " : " thread ") + text(thread.index) + " at " + text(thread.site);
  }
  note_fault(cudaErrorLaunchFailure, "deadlock; waiting:" + waiting + (listed > 4 ? ", ..." : ""));
}

}  // namespace brigade::cuda_emulation
