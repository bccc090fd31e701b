#include "expert_parallel/exchange/answer_slots.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

void AnswerSlots::begin(uint64_t step, uint32_t layer, int slots, std::byte* rows) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(static_cast<size_t>(slots) <= state_.size());
  active_ = true;
  step_ = step;
  layer_ = layer;
  slots_ = slots;
  rows_ = rows;
  std::fill(state_.begin(), state_.begin() + slots, kUnused);
  open_.store(0, std::memory_order_release);
  declines_.store(false, std::memory_order_release);
}

void AnswerSlots::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  active_ = false;
}

void AnswerSlots::set(int slot, State state, Rank asked) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(slot >= 0 && slot < slots_);
  const int change = int(is_open(state)) - int(is_open(state_[slot]));
  state_[slot] = state;
  asked_[slot] = asked;
  open_.fetch_add(change, std::memory_order_acq_rel);
}

bool AnswerSlots::is_answered(int slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_[slot] == kAnswered;
}

bool AnswerSlots::is_homeless(int slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_[slot] == kHomeless;
}

bool AnswerSlots::is_declined(int slot) {
  std::lock_guard<std::mutex> lock(mutex_);
  return state_[slot] == kDeclined;
}

// The caller holds the mutex. take_row(i, slot) for each row i that is wanted.
template <typename Take>
bool AnswerSlots::take(Rank rank, const FrameView& frame, Take&& take_row) {
  const FrameHeader& header = frame.header;
  const bool decline = header.kind == FrameKind::kDecline;
  const bool current = active_ && header.step == step_ && header.layer == layer_;
  int closed = 0, declined = 0;
  for (uint32_t i = 0; i < header.entry_count; ++i) {
    const uint32_t slot = frame.slot(i);
    if (!current || slot >= static_cast<uint32_t>(slots_) || !is_open(state_[slot]) ||
        (decline && (state_[slot] == kDeclined || asked_[slot] != rank))) {
      late_.fetch_add(1, std::memory_order_relaxed);
    } else if (decline) {
      state_[slot] = kDeclined;
      ++declined;
    } else {
      take_row(i, slot);
      state_[slot] = kAnswered;
      ++closed;
    }
  }
  declined_.fetch_add(declined, std::memory_order_relaxed);
  if (declined > 0) declines_.store(true, std::memory_order_release);
  const int before = open_.fetch_sub(closed, std::memory_order_acq_rel);
  return (closed > 0 && before == closed) || declined > 0;
}

bool AnswerSlots::fill(Rank rank, const FrameView& frame) {
  std::lock_guard<std::mutex> lock(mutex_);
  return take(rank, frame, [&](uint32_t i, uint32_t slot) {
    std::memcpy(rows_ + slot * row_bytes_, frame.rows + i * row_bytes_, row_bytes_);
  });
}

bool AnswerSlots::fill_later(Rank rank, const FrameView& frame, uint64_t receipt,
                             DeviceAnswers& keeper) {
  std::lock_guard<std::mutex> lock(mutex_);
  bool kept = false;
  keeper.open_frame(receipt, frame.rows);
  (void)take(rank, frame, [&](uint32_t i, uint32_t slot) {
    keeper.add(i, slot);
    kept = true;
  });
  keeper.close_frame(kept);
  return kept;
}

}  // namespace brigade::expert_parallel
