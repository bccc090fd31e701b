// BlockRunner's operations within a warp: lanes bring a value each and go on when all have come.
#include <bit>
#include <cstring>

#include "tests/cuda_emulation/shim/block_runner.h"

namespace brigade::cuda_emulation {

const LaneValues& BlockRunner::exchange(WarpOp op, uint32_t mask, const void* value, size_t bytes,
                                        Site site) {
  ThreadState& self = *current_;
  const uint32_t lane = self.number % 32;
  self.site = site;
  leave_exchange(self);
  if ((mask >> lane & 1u) == 0) {
    note_fault(cudaErrorLaunchFailure, "a warp operation at line " + std::to_string(site.line) +
                                           " whose mask leaves out the calling lane");
    abandon();
  }
  Exchange& joined = join_exchange(op, mask, bytes, site);
  joined.values.lanes |= 1u << lane;
  if (bytes > 0) std::memcpy(joined.values.bytes[lane], value, bytes);
  self.exchange = &joined;
  self.completed_exchange = joined.values.lanes == (mask & warp().alive);
  if (self.completed_exchange) {
    release_exchange(joined, lane);
  } else {
    wait_for_others(Waiting::kExchange);
  }
  return joined.values;
}

Exchange& BlockRunner::join_exchange(WarpOp op, uint32_t mask, size_t bytes, Site site) {
  const uint32_t lane = current_->number % 32;
  for (Exchange* pending : warp().pending) {
    if ((pending->mask & mask) == 0) continue;
    if (pending->mask != mask || pending->op != op || pending->bytes != bytes ||
        (pending->values.lanes >> lane & 1u) != 0) {
      note_fault(cudaErrorLaunchFailure,
                 "lanes of one mask are in different warp operations: one at " +
                     std::string(site.file) + ":" + std::to_string(site.line) + ", others at " +
                     pending->site.file + ":" + std::to_string(pending->site.line));
      abandon();
    }
    return *pending;
  }
  if (free_exchanges_.empty()) free_exchanges_.push_back(&exchange_storage_.emplace_back());
  Exchange& fresh = *free_exchanges_.back();
  free_exchanges_.pop_back();
  fresh.values.lanes = 0;
  std::memset(fresh.values.bytes, 0xFF, sizeof(fresh.values.bytes));
  fresh.op = op;
  fresh.mask = mask;
  fresh.bytes = bytes;
  fresh.site = site;
  warp().pending.push_back(&fresh);
  return fresh;
}

// All of its lanes but `except_lane`, which is running, may go on.
void BlockRunner::release_exchange(Exchange& done, uint32_t except_lane) {
  if (done.op == WarpOp::kMatrix && done.values.lanes != kNoLane) {
    note_fault(cudaErrorLaunchFailure,
               "a matrix operation without all 32 lanes at line " + std::to_string(done.site.line));
    abandon();
  }
  std::erase(warp().pending, &done);
  done.readers = std::popcount(done.values.lanes);
  ThreadState* const first = &threads_[current_->number / 32 * 32];
  for (uint32_t step = 0; step < 32; ++step) {
    const uint32_t lane = seed_ == 1 ? step : 31 - step;
    if (lane != except_lane && (done.values.lanes >> lane & 1u) != 0)
      ready_.push_back(first + lane);
  }
}

void BlockRunner::leave_exchange(ThreadState& thread) {
  if (thread.exchange == nullptr) return;
  if (--thread.exchange->readers == 0) free_exchanges_.push_back(thread.exchange);
  thread.exchange = nullptr;
}

void BlockRunner::complete_exchanges_of_ended_lane() {
  const std::vector<Exchange*> pending = warp().pending;
  for (Exchange* waiting : pending) {
    if (waiting->values.lanes == (waiting->mask & warp().alive))
      release_exchange(*waiting, kNoLane);
  }
}

}  // namespace brigade::cuda_emulation
