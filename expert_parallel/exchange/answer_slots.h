// The answers of one layer's exchange while they come in: which slots are open, and the copy of
// each answer row into its slot. The progress thread fills, the step thread plans and asks; one
// mutex, held for the rows of one frame at most. An answer counts once, from whoever brings it
// first: bits are equal. Late and double answers are counted and dropped.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "expert_parallel/transport/frame.h"

namespace brigade::expert_parallel {

class AnswerSlots {
 public:
  AnswerSlots(int max_slots, size_t row_bytes) : row_bytes_(row_bytes), state_(max_slots) {}

  // Step thread. Answers of another step or layer are late from here on.
  void begin(uint64_t step, uint32_t layer, int slots, std::byte* rows);
  // No answer of this exchange is wanted any more.
  void end();
  // Marks a slot: expected from a worker, answered here, or waiting for a holder.
  void expect(int slot) { set(slot, kExpected); }
  void answered_here(int slot) { set(slot, kAnswered); }
  void homeless(int slot) { set(slot, kHomeless); }
  bool is_answered(int slot);
  bool is_homeless(int slot);
  // True once per decline: the slot must be sent again.
  bool take_declined(int slot);
  bool complete() const { return open_.load(std::memory_order_acquire) == 0; }

  // Progress thread. True when it filled the last expected slot, or something was declined.
  bool fill(const FrameView& frame);

  uint64_t late() const { return late_.load(std::memory_order_relaxed); }
  uint64_t declined() const { return declined_.load(std::memory_order_relaxed); }

 private:
  enum State : uint8_t { kUnused, kExpected, kDeclined, kAnswered, kHomeless };
  static bool is_open(State state) { return state == kExpected || state == kDeclined; }
  void set(int slot, State state);

  const size_t row_bytes_;
  std::mutex mutex_;
  bool active_ = false;
  uint64_t step_ = 0;
  uint32_t layer_ = 0;
  int slots_ = 0;
  std::byte* rows_ = nullptr;
  std::vector<State> state_;
  std::atomic<int> open_{0};
  std::atomic<uint64_t> late_{0}, declined_{0};
};

}  // namespace brigade::expert_parallel
