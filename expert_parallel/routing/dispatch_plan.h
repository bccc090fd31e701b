// From the router's choice to work per rank: which rows travel where (each row once per rank), which
// experts run over them, and the slot (row * top_k + k) that each answer goes into. Planned for a
// largest batch at start; build() allocates nothing. Owned by one exchange.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "expert_parallel/routing/placement.h"

namespace brigade::expert_parallel {

// Entries [first, first + count) of the plan run on one expert.
struct ExpertEntries {
  int32_t expert = 0;
  int32_t first = 0;
  int32_t count = 0;
};

// One rank's share of a layer. Views into the plan; valid until the next build().
struct RankWork {
  Rank rank = kCoordinator;
  std::span<const int32_t> rows;           // distinct rows that travel, ascending
  std::span<const ExpertEntries> experts;  // ascending expert id; entries are contiguous over them
  int32_t first_entry = 0;
  int32_t num_entries = 0;
};

// A choice that leaves a term out of the plan: it has its answer already, or nobody to compute it.
inline constexpr Rank kNotPlanned = -2;

class DispatchPlan {
 public:
  DispatchPlan(int max_rows, int top_k, int experts, int num_ranks);

  // experts: [rows, top_k] ids of one layer. `choose(expert, row)` names the rank that computes this
  // term; all choices of one expert may differ by row (replicas).
  template <typename Choose>
  void build(std::span<const int32_t> experts, int rows, Choose&& choose) {
    build_terms(experts, rows, [&](int32_t term) { return choose(experts[term], term / top_k_); });
  }
  // The same by term (row * top_k + k); the choice may be kNotPlanned.
  template <typename Choose>
  void build_terms(std::span<const int32_t> experts, int rows, Choose&& choose) {
    start(experts, rows);
    for (int32_t term = 0; term < rows * top_k_; ++term) rank_of_term_[term] = choose(term);
    finish();
  }
  // The common case: the first replica of the placement.
  void build(std::span<const int32_t> experts, int rows, const Placement& placement, int moe_layer) {
    build(experts, rows, [&](int32_t expert, int) {
      const auto replicas = placement.replicas(moe_layer, expert);
      return replicas.empty() ? kNotPlanned : replicas[0];
    });
  }

  // Ranks with work, the coordinator first.
  std::span<const RankWork> work() const { return {work_.data(), static_cast<size_t>(num_work_)}; }
  // Per entry, grouped by rank, then expert, then row ascending:
  std::span<const int32_t> entry_row() const { return entry_row_; }            // row of the layer
  std::span<const int32_t> entry_travelling() const { return entry_travelling_; }  // index into RankWork::rows
  std::span<const int32_t> entry_slot() const { return entry_slot_; }          // row * top_k + k

 private:
  void start(std::span<const int32_t> experts, int rows);
  void finish();

  const int top_k_, experts_, ranks_;  // ranks_ counts the coordinator, at index 0
  std::span<const int32_t> chosen_;
  int rows_ = 0;
  std::vector<Rank> rank_of_term_;         // [rows * top_k]
  std::vector<int32_t> cursor_;            // [ranks, experts]: next entry
  std::vector<int32_t> entry_row_, entry_travelling_, entry_slot_;  // [rows * top_k]
  std::vector<int32_t> rows_of_rank_;      // [ranks, max_rows]
  std::vector<int32_t> num_rows_of_rank_;  // [ranks]
  std::vector<ExpertEntries> expert_entries_;
  std::vector<RankWork> work_;
  int num_work_ = 0;
};

}  // namespace brigade::expert_parallel
