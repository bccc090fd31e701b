// The same words with experts in workers: tokens and log-probability bits do not depend on how many
// workers there are, which of them holds which expert, how many microbatches are in flight, or on
// anything else that may change meanwhile; within one wire dtype, the one-process engine included.
#include <algorithm>
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/runtime/engine/identity_bed.h"
#include "tests/support/engine_cluster.h"
#include "tests/support/random_placement.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using expert_parallel::Placement;
using kernels::DType;

// What really happened, over all runs.
struct Witness {
  int runs = 0, one_expert_per_worker = 0, more_workers_than_experts = 0, uneven_split = 0;
  int async = 0, largest_batch = 0;
  ClusterCounts counts;

  void add(const Circumstances& circumstances, int workers, const Placement& placement,
           const ClusterCounts& seen, const ProbeOutcome& outcome) {
    ++runs;
    one_expert_per_worker += workers == placement.experts() ? 1 : 0;
    more_workers_than_experts += workers > placement.experts() ? 1 : 0;
    uneven_split += workers > 0 && placement.experts() % workers != 0 ? 1 : 0;
    async += circumstances.device == kernels::DeviceKind::kCpuAsync ? 1 : 0;
    largest_batch = std::max(largest_batch, outcome.status.max_sequences_in_step);
    counts.exchanges += seen.exchanges;
    counts.with_several_frames += seen.with_several_frames;
    counts.rows_with_several_experts += seen.rows_with_several_experts;
    counts.workers_without_rows += seen.workers_without_rows;
    EXPECT_EQ(seen.parked_rows, 0u);
    EXPECT_EQ(outcome.status.requests_failed, 0);
  }
  void print() const {
    std::printf(
        "%d runs, %llu exchanges: %llu with several frames to a worker, %llu rows with several "
        "experts on one, %llu times a worker had no rows; %d on cpu_async, largest batch %d\n",
        runs, static_cast<unsigned long long>(counts.exchanges),
        static_cast<unsigned long long>(counts.with_several_frames),
        static_cast<unsigned long long>(counts.rows_with_several_experts),
        static_cast<unsigned long long>(counts.workers_without_rows), async, largest_batch);
  }
};

uint64_t combined(const std::vector<uint64_t>& fingerprints) {
  uint64_t hash = 0;
  for (const uint64_t print : fingerprints) hash = hash * 0x9e3779b97f4a7c15u + print;
  return hash;
}

void compare(const IdentitySubject& subject, const std::vector<uint64_t>& expected, int workers,
             const Circumstances& circumstances, std::mt19937_64& random, Witness* witness) {
  EngineCluster cluster({.checkpoint = subject.folder(),
                         .workers = workers,
                         .microbatches = circumstances.microbatches,
                         .max_rows = circumstances.max_rows,
                         .wire_dtype = circumstances.wire_dtype});
  const Placement placement = random_placement(cluster.geometry(), workers, random);
  SCOPED_TRACE(testing::Message() << workers << " workers, " << circumstances.describe());
  cluster.start_all(placement);
  ClusterCounts counts;
  const auto outcome =
      subject.run(circumstances, {.exchange = cluster.exchange_factory(),
                                  .load_experts = workers == 0,
                                  .before_the_end = [&] { counts = cluster.counts(); }});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(count_differences(outcome->fingerprints, expected), 0);
  EXPECT_EQ(cluster.refused_frames(), 0u);
  witness->add(circumstances, workers, placement, counts, *outcome);
}

// Bits of the engine with all experts in its own process.
std::vector<uint64_t> one_process(const IdentitySubject& subject, DType wire) {
  Circumstances plain = subject.plain();
  plain.wire_dtype = wire;
  const auto outcome = subject.run(plain);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  if (!outcome.ok()) return {};
  std::printf("%s, wire %s: %016llx\n", subject.name().c_str(), kernels::dtype_name(wire),
              static_cast<unsigned long long>(combined(outcome->fingerprints)));
  return outcome->fingerprints;
}

class ClusterIdentity : public ::testing::TestWithParam<DType> {};

TEST_P(ClusterIdentity, AnyWorkersPlacementAndMicrobatches) {
  const uint64_t seed = test_seed(51);
  SCOPED_TRACE(replay_note("cluster_identity_test", seed));
  std::mt19937_64 random(seed);
  Witness witness;
  const int placements = scaled(4, 1);
  const bool every_pair = scaled(10) >= 10;  // of workers and microbatches on every model
  int run = 0, pair = 0;
  for (const std::string& folder : {demo_checkpoint(), golden_checkpoint("mixtral_many_experts"),
                                    golden_checkpoint("mixtral_odd_sizes")}) {
    const auto subject = IdentitySubject::open(folder);
    ASSERT_TRUE(subject.ok()) << subject.status();
    const std::vector<uint64_t> expected = one_process(*subject, GetParam());
    for (const int workers : {0, 1, 2, 3, 5, 7}) {
      for (int microbatches = 1; microbatches <= 3; ++microbatches) {
        // Over the three models each pair comes up once.
        ++pair;
        if (!every_pair && (pair + pair / 18) % 3 != 0) continue;
        for (int i = 0; i < placements; ++i, ++run) {
          Circumstances circumstances =
              subject->random(random, /*wide=*/run % 3 == 0, /*crowded=*/run % 2 == 1);
          circumstances.microbatches = microbatches;
          circumstances.wire_dtype = GetParam();
          compare(*subject, expected, workers, circumstances, random, &witness);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  witness.print();
  EXPECT_GT(witness.counts.rows_with_several_experts, 0u);
  EXPECT_GT(witness.counts.workers_without_rows, 0u);
  EXPECT_GT(witness.one_expert_per_worker, 0);
  EXPECT_GT(witness.more_workers_than_experts, 0);
  EXPECT_GT(witness.uneven_split, 0);
  EXPECT_GT(witness.async, 0);
}

// Prompts so long that one layer's rows for a worker take several frames.
TEST_P(ClusterIdentity, LayersOfSeveralFrames) {
  const uint64_t seed = test_seed(52);
  SCOPED_TRACE(replay_note("cluster_identity_test", seed));
  std::mt19937_64 random(seed);
  Witness witness;
  const auto subject = IdentitySubject::open(demo_checkpoint(), /*longest_prompt=*/620);
  ASSERT_TRUE(subject.ok()) << subject.status();
  const std::vector<uint64_t> expected = one_process(*subject, GetParam());
  for (int workers = 1; workers <= scaled(2, 1); ++workers) {
    Circumstances circumstances = subject->random(random, /*wide=*/false, /*crowded=*/false);
    circumstances.max_rows = circumstances.prefill_chunk = 640;
    circumstances.microbatches = 2;
    circumstances.neighbours = 0;
    circumstances.wire_dtype = GetParam();
    compare(*subject, expected, workers, circumstances, random, &witness);
    if (HasFatalFailure()) return;
  }
  witness.print();
  EXPECT_GT(witness.counts.with_several_frames, 0u);
}

INSTANTIATE_TEST_SUITE_P(Wire, ClusterIdentity, ::testing::Values(DType::kF32, DType::kBF16),
                         [](const auto& info) {
                           return std::string(kernels::dtype_name(info.param));
                         });

}  // namespace
}  // namespace brigade::tests
