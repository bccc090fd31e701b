// The answers of one layer's exchange while they come in: which slots are open, and the copy of
// each answer row into its slot. The progress thread fills, the step thread plans and asks; one
// mutex, held for the rows of one frame at most. An answer counts once, from whoever brings it
// first: bits are equal. A decline counts from the rank that was asked last. Everything late or
// double is counted and dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "expert_parallel/exchange/device_answers.h"
#include "expert_parallel/routing/dispatch_plan.h"
#include "expert_parallel/transport/frame.h"

namespace brigade::expert_parallel {

class AnswerSlots {
 public:
  AnswerSlots(int max_slots, size_t row_bytes)
      : row_bytes_(row_bytes), state_(max_slots), asked_(max_slots) {}

  // Step thread. Answers of another step or layer are late from here on.
  void begin(uint64_t step, uint32_t layer, int slots, std::byte* rows);
  // No answer of this exchange is wanted any more.
  void end();
  // Marks a slot: expected from a worker, answered here, or waiting for a holder.
  void expect(int slot, Rank from) { set(slot, kExpected, from); }
  void answered_here(int slot) { set(slot, kAnswered, kCoordinator); }
  void homeless(int slot) { set(slot, kHomeless, kNotPlanned); }
  bool is_answered(int slot);
  bool is_homeless(int slot);
  // Whether the rank that was asked has declined, since it was asked last.
  bool is_declined(int slot);
  // Some slot was declined since the last call.
  bool take_declines() { return declines_.exchange(false, std::memory_order_acq_rel); }
  bool complete() const { return open_.load(std::memory_order_acquire) == 0; }

  // Progress thread. True when it filled the last expected slot, or something was declined.
  bool fill(Rank rank, const FrameView& frame);
  // The same for rows in device memory, which `keeper` copies later: true when it keeps the frame.
  bool fill_later(Rank rank, const FrameView& frame, uint64_t receipt, DeviceAnswers& keeper);

  uint64_t late() const { return late_.load(std::memory_order_relaxed); }
  uint64_t declined() const { return declined_.load(std::memory_order_relaxed); }

 private:
  enum State : uint8_t { kUnused, kExpected, kDeclined, kAnswered, kHomeless };
  static bool is_open(State state) { return state == kExpected || state == kDeclined; }
  void set(int slot, State state, Rank asked);
  template <typename Take>
  bool take(Rank rank, const FrameView& frame, Take&& take_row);

  const size_t row_bytes_;
  std::mutex mutex_;
  bool active_ = false;
  uint64_t step_ = 0;
  uint32_t layer_ = 0;
  int slots_ = 0;
  std::byte* rows_ = nullptr;
  std::vector<State> state_;
  std::vector<Rank> asked_;  // by slot: who was asked last
  std::atomic<int> open_{0};
  std::atomic<bool> declines_{false};
  std::atomic<uint64_t> late_{0}, declined_{0};
};

}  // namespace brigade::expert_parallel
