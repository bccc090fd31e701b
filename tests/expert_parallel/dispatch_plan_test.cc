#include "expert_parallel/routing/dispatch_plan.h"

#include <algorithm>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::expert_parallel {
namespace {

// Every (row, k) appears exactly once, at the chosen rank and expert; rows travel once per rank.
void check_plan(const DispatchPlan& plan, std::span<const int32_t> experts, int rows, int top_k,
                const Placement& placement) {
  std::set<int32_t> slots;
  int32_t next_entry = 0;
  for (const RankWork& work : plan.work()) {
    EXPECT_EQ(work.first_entry, next_entry);
    EXPECT_TRUE(std::is_sorted(work.rows.begin(), work.rows.end()));
    EXPECT_EQ(std::set<int32_t>(work.rows.begin(), work.rows.end()).size(), work.rows.size());
    std::set<int32_t> used_rows;
    int32_t last_expert = -1;
    for (const ExpertEntries& entries : work.experts) {
      EXPECT_GT(entries.expert, last_expert);
      EXPECT_GT(entries.count, 0);
      EXPECT_EQ(entries.first, next_entry);
      last_expert = entries.expert;
      for (int32_t i = entries.first; i < entries.first + entries.count; ++i) {
        const int32_t slot = plan.entry_slot()[i], row = plan.entry_row()[i];
        EXPECT_EQ(slot / top_k, row);
        EXPECT_EQ(experts[slot], entries.expert);
        EXPECT_TRUE(placement.holds(work.rank, 0, entries.expert));
        EXPECT_EQ(work.rows[plan.entry_travelling()[i]], row);
        EXPECT_TRUE(slots.insert(slot).second);
        used_rows.insert(row);
      }
      next_entry += entries.count;
    }
    EXPECT_EQ(used_rows.size(), work.rows.size());
    EXPECT_EQ(work.num_entries, next_entry - work.first_entry);
  }
  EXPECT_EQ(slots.size(), size_t(rows) * top_k);
}

TEST(DispatchPlan, CoversEveryTermOnceForRandomPlacements) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("dispatch_plan_test", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < tests::scaled(300, 50); ++round) {
    const int experts = 1 + random() % 60, top_k = 1 + random() % std::min(experts, 6);
    const int num_ranks = random() % 8, rows = random() % 40;
    std::vector<std::vector<Rank>> layer(experts);
    for (auto& replicas : layer) replicas = {static_cast<Rank>(random() % (num_ranks + 1)) - 1};
    const Placement placement = *Placement::create(1, {layer}, num_ranks);
    std::vector<int32_t> ids(experts), chosen;
    for (int e = 0; e < experts; ++e) ids[e] = e;
    for (int r = 0; r < rows; ++r) {
      std::shuffle(ids.begin(), ids.end(), random);
      chosen.insert(chosen.end(), ids.begin(), ids.begin() + top_k);
    }
    DispatchPlan plan(40, top_k, experts, num_ranks);
    for (int repeat = 0; repeat < 2; ++repeat) {  // a plan is built again and again
      plan.build(chosen, rows, placement, 0);
      check_plan(plan, chosen, rows, top_k, placement);
    }
  }
}

TEST(DispatchPlan, ReplicasMayShareAnExpertsRows) {
  const Placement placement = *Placement::create(1, {{{0, 1}, {1}}}, 2);
  DispatchPlan plan(8, 1, 2, 2);
  const std::vector<int32_t> chosen = {0, 0, 1, 0};
  plan.build(chosen, 4, [&](int32_t expert, int row) {
    const auto replicas = placement.replicas(0, expert);
    return replicas[row % replicas.size()];
  });
  check_plan(plan, chosen, 4, 1, placement);
  EXPECT_EQ(plan.work().size(), 2u);
  EXPECT_EQ(plan.work()[0].rows.size(), 1u);  // row 0
  EXPECT_EQ(plan.work()[1].rows.size(), 3u);  // rows 1, 2, 3
}

}  // namespace
}  // namespace brigade::expert_parallel
