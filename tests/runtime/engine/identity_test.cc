// The same words: tokens and log-probability bits of a request do not depend on batch neighbours,
// chunk size, threads, prefix hits, preemption, microbatches or the device. Random circumstances
// over the demo model and one golden checkpoint of each attention variant, against one plain run
// each; and planted faults that must be seen.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "gtest/gtest.h"
#include "kernels/ops/path_counters.h"
#include "tests/runtime/engine/identity_bed.h"
#include "tests/runtime/engine/split_k_exchange.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using kernels::CountedKernel;
using kernels::DeviceKind;
using kernels::RowPath;

// What really happened, over all runs.
struct Witness {
  int combinations = 0;
  int largest_batch = 0;
  int64_t mixed_steps = 0, prefix_hits = 0, preemptions = 0, steps = 0;
  int64_t drafted = 0, accepted = 0;
  std::array<int, 4> threads{};
  int async = 0;

  void add(const Circumstances& circumstances, const ProbeOutcome& outcome) {
    ++combinations;
    largest_batch = std::max(largest_batch, outcome.status.max_sequences_in_step);
    mixed_steps += outcome.status.mixed_steps;
    prefix_hits += outcome.status.prefix_hit_tokens;
    preemptions += outcome.status.preemptions;
    steps += outcome.status.steps;
    drafted += outcome.status.drafted_tokens;
    accepted += outcome.status.accepted_drafts;
    ++threads[static_cast<size_t>(circumstances.threads)];
    if (circumstances.device == DeviceKind::kCpuAsync) ++async;
  }

  void print_and_check() const {
    std::printf("%d combinations, %lld steps; threads 1/2/3: %d/%d/%d; cpu_async %d\n",
                combinations, static_cast<long long>(steps), threads[1], threads[2], threads[3],
                async);
    std::printf(
        "largest batch %d sequences, mixed steps %lld, prefix hit tokens %lld, "
        "preemptions %lld\n",
        largest_batch, static_cast<long long>(mixed_steps), static_cast<long long>(prefix_hits),
        static_cast<long long>(preemptions));
    std::printf("drafts %lld, accepted %lld\n", static_cast<long long>(drafted),
                static_cast<long long>(accepted));
    EXPECT_GT(accepted, 0);
    EXPECT_GT(drafted, accepted);
    EXPECT_GE(largest_batch, 16);
    EXPECT_GT(mixed_steps, 0);
    EXPECT_GT(prefix_hits, 0);
    EXPECT_GT(preemptions, 0);
    EXPECT_GT(async, 0);
    for (const int count : {threads[1], threads[2], threads[3]}) EXPECT_GT(count, 0);
    for (int kernel = 0; kernel < kernels::kCountedKernels; ++kernel) {
      const auto counted = static_cast<CountedKernel>(kernel);
      std::printf("%s rows:", counted_kernel_name(counted));
      for (int path = 0; path < kernels::kRowPaths; ++path) {
        const auto rows = static_cast<RowPath>(path);
        const uint64_t calls = path_count(counted, rows);
        std::printf(" %s: %llu", row_path_name(rows), static_cast<unsigned long long>(calls));
        EXPECT_GT(calls, 0u) << counted_kernel_name(counted) << " " << row_path_name(rows);
      }
      std::printf("\n");
    }
  }
};

void compare_circumstances(const std::string& folder, int combinations, std::mt19937_64& random,
                           Witness* witness) {
  const auto subject = IdentitySubject::open(folder);
  ASSERT_TRUE(subject.ok()) << subject.status();
  const auto plain = subject->run(subject->plain());
  ASSERT_TRUE(plain.ok()) << plain.status();
  for (int i = 0; i < combinations; ++i) {
    Circumstances circumstances =
        subject->random(random, /*wide=*/i % 4 == 0, /*crowded=*/i % 2 == 1);
    circumstances.threads = 1 + i % 3;
    SCOPED_TRACE(subject->name() + ": " + circumstances.describe());
    // Every third run looks into prompts only; in the others drafts are mostly right.
    ReplacedParts parts;
    if (i % 3 != 0) {
      parts.drafts = [&] { return drafts_of(plain->texts, subject->vocab()); };
    }
    const auto outcome = subject->run(circumstances, parts);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    ASSERT_EQ(count_differences(outcome->fingerprints, plain->fingerprints), 0);
    witness->add(circumstances, *outcome);
  }
}

TEST(Identity, TheSameBitsUnderAllCircumstances) {
  const uint64_t seed = test_seed(31);
  SCOPED_TRACE(replay_note("identity_test", seed));
  std::mt19937_64 random(seed);
  Witness witness;
  kernels::reset_path_counts();
  compare_circumstances(demo_checkpoint(), scaled(100, 6), random, &witness);
  for (const char* name :
       {"llama_mha", "llama_gqa_tied", "llama_multi_query", "llama_attention_bias",
        "llama_rope_llama3", "mixtral_top2", "mixtral_odd_sizes"}) {
    compare_circumstances(golden_checkpoint(name), scaled(15, 3), random, &witness);
    if (HasFatalFailure()) return;
  }
  witness.print_and_check();
}

// One ulp more on one logit whenever a step holds more than one row.
class NudgedByNeighbours : public runtime::StepModel {
 public:
  explicit NudgedByNeighbours(std::unique_ptr<runtime::StepModel> model)
      : model_(std::move(model)) {}
  int vocab() const override { return model_->vocab(); }
  const runtime::StepLimits& limits() const override { return model_->limits(); }
  absl::Status begin(const runtime::StepBatch& batch, kernels::Waker* waker) override {
    sequences_ = batch.sequences;
    return model_->begin(batch, waker);
  }
  absl::StatusOr<Progress> advance() override { return model_->advance(); }
  std::span<const float> logits(int index) const override {
    const std::span<const float> row = model_->logits(index);
    nudged_.assign(row.begin(), row.end());
    if (sequences_ > 1) {
      float& best = *std::max_element(nudged_.begin(), nudged_.end());
      best = std::nextafter(best, 1e30f);
    }
    return nudged_;
  }
  // Best tokens stay the same.
  runtime::RowLaw law(int index) const override { return model_->law(index); }
  absl::Status copy_block(int from, int to) override { return model_->copy_block(from, to); }
  std::vector<std::vector<int64_t>> expert_rows() const override { return model_->expert_rows(); }

 private:
  const std::unique_ptr<runtime::StepModel> model_;
  int sequences_ = 0;
  mutable std::vector<float> nudged_;
};

TEST(Identity, APlantedUlpByBatchNeighboursIsCaught) {
  const auto subject = IdentitySubject::open(golden_checkpoint("mixtral_top2"));
  ASSERT_TRUE(subject.ok()) << subject.status();
  const ReplacedParts faults{.wrap = [](std::unique_ptr<runtime::StepModel> model) {
    return std::make_unique<NudgedByNeighbours>(std::move(model));
  }};
  Circumstances alone = subject->plain();
  Circumstances batched = alone;
  batched.together = true;
  batched.max_sequences = 16;
  const auto first = subject->run(alone, faults), second = subject->run(batched, faults);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_GT(count_differences(first->fingerprints, second->fingerprints), 0);
}

TEST(Identity, APlantedSplitOfKOverThreadsIsCaught) {
  const std::string folder = golden_checkpoint("mixtral_top2");
  const auto subject = IdentitySubject::open(folder);
  ASSERT_TRUE(subject.ok()) << subject.status();
  for (const int fixed_parts : {2, 0}) {
    const auto exchange = split_k_exchange(folder, fixed_parts);
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    Circumstances circumstances = subject->plain();
    const auto one = subject->run(circumstances, {.exchange = *exchange});
    circumstances.threads = 3;
    const auto three = subject->run(circumstances, {.exchange = *exchange});
    ASSERT_TRUE(one.ok()) << one.status();
    ASSERT_TRUE(three.ok()) << three.status();
    const int differences = count_differences(one->fingerprints, three->fingerprints);
    if (fixed_parts > 0) {
      EXPECT_EQ(differences, 0) << "an order that is always the same";
    } else {
      EXPECT_GT(differences, 0);
    }
  }
}

}  // namespace
}  // namespace brigade::tests
