// Depth control against a virtual clock: tables of step cost, drafts of a given acceptance, streams
// and a draft cost. What it reaches is compared with the better of no speculation and the best
// fixed depth.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/expert_demand.h"
#include "tests/runtime/speculative/depth_simulation.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

TEST(DepthControl, NeverMuchBelowTheBestOfOffAndEveryFixedDepth) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("depth_control_test", seed));
  double worst = 9, sum = 0;
  int worlds = 0;
  for (const CostTable& table : tables()) {
    for (const double acceptance : {0.2, 0.4, 0.6, 0.8, 0.95}) {
      for (const int streams : {1, 4, 16}) {
        for (const double share : {0.0, 0.05, 0.3}) {
          if (share == 0.05 && !is_long_run()) continue;
          const World world{table, acceptance, streams, share * table.milliseconds(1)};
          double best = 0;
          int best_depth = 0;
          for (int depth = 0; depth <= 8; ++depth) {
            if (fixed_rate(world, depth) <= best) continue;
            best = fixed_rate(world, depth);
            best_depth = depth;
          }
          Simulation simulation(streams, seed + static_cast<uint64_t>(worlds));
          simulation.acceptance = [&](size_t) { return acceptance; };
          simulation.milliseconds = [&](int rows, int) { return table.milliseconds(rows); };
          simulation.wait_ms = [&](int depth) { return world.draft_ms * depth; };
          simulation.run(300);
          // The length is part of the claim, so it does not scale: what finding out costs is spread
          // over it.
          simulation.run(4000 * (streams == 1 ? 4 : 1));
          const double ratio = simulation.rate() / best;
          EXPECT_GE(ratio, 0.98) << table.name << ", acceptance " << acceptance << ", streams "
                                 << streams << ", draft cost " << share << ": best depth "
                                 << best_depth << ", level "
                                 << simulation.control().decision().level;
          worst = std::min(worst, ratio);
          sum += ratio;
          ++worlds;
        }
      }
    }
  }
  std::printf("%d worlds: worst %.4f, mean %.4f of the better of off and the best fixed depth\n",
              worlds, worst, sum / worlds);
}

// A world of 2 workers with half the experts each, top-2: rows choose experts by `shares`; the step
// waits for the slowest worker, 6 ms for each distinct expert that it reads.
class ExpertWorld {
 public:
  explicit ExpertWorld(std::vector<double> shares)
      : shares_(std::move(shares)), half_(shares_.size() / 2) {}
  double experts(int rows) const {
    double slowest = 0;
    for (size_t worker = 0; worker < 2; ++worker) {
      double awake = 0;
      for (size_t e = 0; e < half_; ++e) {
        awake += 1 - std::pow(1 - shares_[worker * half_ + e], rows);
      }
      slowest = std::max(slowest, awake);
    }
    return slowest;
  }
  double milliseconds(int rows) const { return 5 + 6 * experts(rows) + 0.1 * rows; }
  std::vector<std::vector<double>> routing() const {
    const auto middle = shares_.begin() + static_cast<std::ptrdiff_t>(half_);
    return {{shares_.begin(), middle}, {middle, shares_.end()}};
  }

 private:
  std::vector<double> shares_;
  size_t half_;
};

// Rows of both kinds number the same; what differs is how many experts they wake.
TEST(DepthControl, RoutingDecidesTheDepth) {
  std::vector<double> few(128, 0.0002), many(128, 0.002);
  few[0] = few[64] = 0.98;                              // the same two experts for nearly every row
  for (size_t e = 0; e < 64; ++e) many[e] = 1.87 / 64;  // spread over one worker's experts
  std::vector<double> depths;
  for (const std::vector<double>& shares : {few, many}) {
    const ExpertWorld world(shares);
    Simulation simulation(2, 11);
    simulation.acceptance = [](size_t) { return 0.6; };
    simulation.milliseconds = [&](int rows, int) { return world.milliseconds(rows); };
    simulation.control().cost().set_routing(world.routing());
    simulation.run(300);
    simulation.run(2000);
    double best = 0;
    for (int depth = 0; depth <= 8; ++depth) {
      const double tokens = 2 * expected_tokens(0.6, depth);
      best = std::max(best, 1000 * tokens / world.milliseconds(2 * (depth + 1)));
    }
    EXPECT_GE(simulation.rate(), 0.98 * best);
    depths.push_back(simulation.control().decision().draft_rows);
  }
  EXPECT_GE(depths[0], depths[1] + 6) << "draft rows, concentrated and spread";
}

// The price of waking experts is known from routing before such a step was ever measured.
TEST(StepCost, PredictsFromDistinctExperts) {
  std::vector<double> shares(16, 0.125);
  const ExpertWorld world(shares);
  runtime::StepCost cost(64);
  cost.set_routing(world.routing());
  EXPECT_NEAR(cost.expected_experts(1), world.experts(1), 1e-12);
  for (const int rows : {1, 2, 3, 5, 8}) {
    for (int i = 0; i < 4; ++i) {
      cost.observe_step(rows, world.experts(rows), world.milliseconds(rows) / 1000);
    }
  }
  for (const int rows : {4, 12, 16, 24}) {
    EXPECT_NEAR(cost.step_seconds(rows), world.milliseconds(rows) / 1000, 0.001) << rows;
  }
}

// Two holders, two layers: what rows of the last while chose says what n rows will wake; the busier
// holder counts; what was chosen long ago and where experts lived before does not.
TEST(ExpertDemand, FollowsRoutingAndHolders) {
  constexpr int kExperts = 16, kRows = 12;
  runtime::ExpertDemand demand(2, kExperts, kRows);
  EXPECT_FALSE(demand.known());
  std::vector<int32_t> holders(kExperts);
  for (int e = 0; e < kExperts; ++e) holders[static_cast<size_t>(e)] = e < 8 ? 0 : 3;
  std::vector<int64_t> counts(kExperts);
  int64_t rows = 0;
  // Every row chooses two: each of the first holder's alike (layer 0 and 1 the same).
  const auto route = [&](int first, int last, int64_t how_many) {
    rows += how_many;
    for (int e = first; e < last; ++e) {
      counts[static_cast<size_t>(e)] += 2 * how_many / (last - first);
    }
    EXPECT_FALSE(demand.take_layer(counts, rows, holders));
    EXPECT_TRUE(demand.take_layer(counts, rows, holders));
  };
  const auto awake = [](int experts, double share, int n) {
    return experts * (1 - std::pow(1 - share, n));
  };
  route(0, 8, 800);
  EXPECT_TRUE(demand.known());
  for (int n = 1; n <= kRows; ++n) {
    EXPECT_NEAR(demand.expected()[static_cast<size_t>(n)], awake(8, 0.25, n), 1e-9) << n;
  }
  // Now all 16 alike; the old choices fade.
  for (int i = 0; i < 40; ++i) route(0, 16, 1600);
  EXPECT_NEAR(demand.expected()[4], awake(8, 0.125, 4), 0.02);
  // One holder for all, then nobody for half of them.
  std::fill(holders.begin(), holders.end(), 1);
  route(0, 16, 16);
  EXPECT_NEAR(demand.expected()[4], awake(16, 0.125, 4), 0.04);
  std::fill(holders.begin(), holders.begin() + 8, -1);
  route(0, 16, 16);
  EXPECT_NEAR(demand.expected()[4], awake(8, 0.125, 4), 0.02);
  const uint64_t before = allocations().count;
  for (int i = 0; i < 10; ++i) route(0, 16, 16);
  EXPECT_EQ(allocations().count, before);
}

TEST(StepCost, OneSlowStepIsNotBelievedSeveralAre) {
  runtime::StepCost cost(8);
  for (int i = 0; i < 5; ++i) cost.observe_step(1, 0, 0.010);
  cost.observe_step(1, 0, 0.100);
  EXPECT_NEAR(cost.step_seconds(1), 0.010, 1e-9);
  cost.observe_step(2, 0, 0.200);  // never measured before, and out of line
  EXPECT_LT(cost.step_seconds(2), 0.020);
  for (int i = 0; i < 6; ++i) cost.observe_step(1, 0, 0.050);
  EXPECT_NEAR(cost.step_seconds(1), 0.050, 0.005);
  // The first step of a process is often the slow one.
  runtime::StepCost late(8);
  late.observe_step(1, 0, 0.300);
  late.observe_step(1, 0, 0.010);
  EXPECT_NEAR(late.step_seconds(1), 0.010, 1e-9);
  for (const double seconds : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    late.observe_step(1, 0, seconds);
  }
  EXPECT_NEAR(late.step_seconds(1), 0.010, 1e-9);
}

// Sequences that drafts suit get the rows, the others none: better than any depth for all.
TEST(DepthControl, GivesEachSequenceItsOwnDepth) {
  const CostTable table = tables()[1];
  Simulation simulation(8, 5);
  simulation.acceptance = [](size_t i) { return i < 4 ? 0.95 : 0.1; };
  simulation.milliseconds = [&](int rows, int) { return table.milliseconds(rows); };
  simulation.run(500);
  simulation.run(2000);
  double best = 0;
  for (int depth = 0; depth <= 8; ++depth) {
    const double tokens = 4 * expected_tokens(0.95, depth) + 4 * expected_tokens(0.1, depth);
    best = std::max(best, 1000 * tokens / table.milliseconds(8 * (depth + 1)));
  }
  EXPECT_GT(simulation.rate(), 1.1 * best);
}

// Off where rows are dear; then its price is what the probes may take.
TEST(DepthControl, OffCostsLessThanTwoPercent) {
  for (const double acceptance : {0.1, 0.3}) {
    Simulation simulation(32, 3);
    simulation.acceptance = [&](size_t) { return acceptance; };
    simulation.milliseconds = [](int rows, int) { return 2.0 * rows; };
    simulation.run(300);
    simulation.run(3000);
    EXPECT_EQ(simulation.control().decision().level, 0);
    EXPECT_GE(simulation.rate(), 0.98 * 32 / 0.064);
    // The drafters rest, looks aside.
    EXPECT_GE(simulation.resting(), 0.9 * 32 * 3000) << "acceptance " << acceptance;
  }
}

// Load comes and goes; the level follows within a bounded number of steps and does not flutter.
TEST(DepthControl, FollowsAcceptanceThatChangesAndDoesNotFlutter) {
  const CostTable table = tables()[0];
  double acceptance = 0.95;
  Simulation simulation(1, 9);
  simulation.acceptance = [&](size_t) { return acceptance; };
  simulation.milliseconds = [&](int rows, int) { return table.milliseconds(rows); };
  simulation.wait_ms = [](int depth) { return 2.0 * depth; };
  for (int phase = 0; phase < 4; ++phase) {
    simulation.run(1500);
    int changes = 0, before = -1;
    simulation.run(0);
    for (int i = 0; i < 1000; ++i) {
      simulation.step();
      const int level = simulation.control().decision().level;
      changes += before >= 0 && (level == 0) != (before == 0);
      before = level;
    }
    double best = 0;
    for (int depth = 0; depth <= 8; ++depth) {
      const double ms = table.milliseconds(depth + 1) + 2.0 * depth;
      best = std::max(best, 1000 * expected_tokens(acceptance, depth) / ms);
    }
    EXPECT_GE(simulation.rate(), 0.97 * best) << "phase " << phase;
    EXPECT_LE(changes, 4) << "phase " << phase;
    acceptance = acceptance > 0.5 ? 0.05 : 0.95;
  }
}

TEST(DepthControl, RequestsMaySayOffOrADepthAndRowsAreNeverExceeded) {
  DepthControl control({.max_depth = 8, .max_sequences = 8, .max_rows = 64});
  std::vector<Survival> survivals(5);
  std::vector<DepthAsk> asks(5);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].survival = &survivals[i];
  std::vector<int> depths(5);
  for (int spare = 0; spare < 40; ++spare) {
    for (int round = 0; round < 60; ++round) {
      asks[0] = {DepthMode::kOff, 4, 8, &survivals[0]};
      asks[1] = {DepthMode::kFixed, 3, 8, &survivals[1]};
      asks[2] = {DepthMode::kFixed, 6, 2, &survivals[2]};
      asks[3] = {DepthMode::kAuto, 0, 8, &survivals[3]};
      asks[4] = {DepthMode::kAuto, 0, round % 4, &survivals[4]};
      control.choose(asks, round % 7, spare, depths);
      EXPECT_EQ(depths[0], 0);
      EXPECT_EQ(depths[1], std::min(3, spare));
      EXPECT_EQ(depths[2], std::min(2, std::max(0, spare - 3)));
      EXPECT_LE(depths[3], 8);
      EXPECT_LE(depths[4], round % 4);
      int rows = 0;
      for (const int depth : depths) {
        ASSERT_GE(depth, 0);
        rows += depth;
      }
      ASSERT_LE(rows, spare);
      control.cost().observe_step(5 + round % 7 + rows, 0, 0.01);
      for (size_t i = 0; i < 5; ++i) control.record(&survivals[i], depths[i], depths[i] / 2);
    }
  }
  control.choose({}, 3, 10, {});
  EXPECT_EQ(control.decision().draft_rows, 0);
}

TEST(DepthControl, AllocatesNothing) {
  DepthControl control({.max_depth = 8, .max_sequences = 16, .max_rows = 200});
  std::vector<Survival> survivals(16);
  std::vector<DepthAsk> asks(16);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i] = {.mode = DepthMode::kAuto, .fixed = 0, .available = 8, .survival = &survivals[i]};
  }
  std::vector<int> depths(16);
  const uint64_t before = allocations().count;
  for (int step = 0; step < 300; ++step) {
    control.choose(asks, 4, 120, depths);
    for (size_t i = 0; i < asks.size(); ++i) control.record(&survivals[i], depths[i], depths[i]);
    control.cost().observe_step(20 + control.decision().draft_rows, 3, 0.01);
    control.cost().observe_wait(control.decision().level, 0.001);
  }
  EXPECT_EQ(allocations().count, before);
}

}  // namespace
}  // namespace brigade::tests
