#include "expert_parallel/routing/dispatch_plan.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

DispatchPlan::DispatchPlan(int max_rows, int top_k, int experts, int num_ranks)
    : top_k_(top_k),
      experts_(experts),
      ranks_(num_ranks + 1),
      rank_of_term_(size_t(max_rows) * top_k),
      cursor_(size_t(ranks_) * experts),
      entry_row_(size_t(max_rows) * top_k),
      entry_travelling_(size_t(max_rows) * top_k),
      entry_slot_(size_t(max_rows) * top_k),
      rows_of_rank_(size_t(ranks_) * max_rows),
      num_rows_of_rank_(ranks_),
      work_(ranks_) {
  expert_entries_.reserve(cursor_.size());
}

void DispatchPlan::start(std::span<const int32_t> experts, int rows) {
  CHECK(rows >= 0 && size_t(rows) * top_k_ <= rank_of_term_.size());
  CHECK(experts.size() >= size_t(rows) * top_k_);
  chosen_ = experts;
  rows_ = rows;
  std::fill(cursor_.begin(), cursor_.end(), 0);
  std::fill(num_rows_of_rank_.begin(), num_rows_of_rank_.end(), 0);
  expert_entries_.clear();
  num_work_ = 0;
}

void DispatchPlan::finish() {
  const int terms = rows_ * top_k_;
  for (int term = 0; term < terms; ++term) {
    if (rank_of_term_[term] == kNotPlanned) continue;
    const int rank_index = rank_of_term_[term] + 1, expert = chosen_[term];
    CHECK(rank_index >= 0 && rank_index < ranks_ && expert >= 0 && expert < experts_);
    ++cursor_[rank_index * experts_ + expert];
  }
  // Counts become first entries; ranks and experts in ascending order.
  int32_t next = 0;
  for (int rank_index = 0; rank_index < ranks_; ++rank_index) {
    const int32_t first_entry = next;
    const size_t first_group = expert_entries_.size();
    for (int expert = 0; expert < experts_; ++expert) {
      int32_t& cursor = cursor_[rank_index * experts_ + expert];
      if (cursor > 0) expert_entries_.push_back({expert, next, cursor});
      next += cursor;
      cursor = next - cursor;
    }
    if (next == first_entry) continue;
    work_[num_work_++] = {.rank = rank_index - 1,
                          .rows = {},
                          .experts = {expert_entries_.data() + first_group,
                                      expert_entries_.size() - first_group},
                          .first_entry = first_entry,
                          .num_entries = next - first_entry};
  }
  const size_t max_rows = rows_of_rank_.size() / ranks_;
  for (int term = 0; term < terms; ++term) {
    if (rank_of_term_[term] == kNotPlanned) continue;
    const int row = term / top_k_, rank_index = rank_of_term_[term] + 1;
    int32_t* rows = &rows_of_rank_[rank_index * max_rows];
    int32_t& count = num_rows_of_rank_[rank_index];
    if (count == 0 || rows[count - 1] != row) rows[count++] = row;
    const int32_t entry = cursor_[rank_index * experts_ + chosen_[term]]++;
    entry_row_[entry] = row;
    entry_travelling_[entry] = count - 1;
    entry_slot_[entry] = term;
  }
  for (int i = 0; i < num_work_; ++i) {
    const int rank_index = work_[i].rank + 1;
    work_[i].rows = {&rows_of_rank_[rank_index * max_rows],
                     static_cast<size_t>(num_rows_of_rank_[rank_index])};
  }
}

}  // namespace brigade::expert_parallel
