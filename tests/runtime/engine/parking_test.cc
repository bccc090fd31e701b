// Rows whose expert nobody holds: their sequences leave the step as if it had not been, the others
// go on, and no answer changes. Over the scripted model, whose parked rows look sound and are
// wrong.
#include <random>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

std::vector<runtime::GenerateRequest> probes() {
  std::vector<runtime::GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    runtime::GenerateRequest request = request_of(some_prompt(i % 3, 4 + 7 * i), 6 + 2 * i);
    request.sampling.logprobs = 5;
    request.sampling.temperature = i % 2 == 1 ? 0.8 : 0;
    request.sampling.seed = static_cast<uint64_t>(100 + i);
    request.sampling.frequency_penalty = i % 4 == 3 ? 0.4 : 0;
    if (i % 4 == 1) request.num_sequences = 3;
    requests.push_back(request);
  }
  return requests;
}

EngineBedConfig random_config(std::mt19937_64& random, int round) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  EngineBedConfig config;
  config.microbatches = pick(1, 3);
  config.block_size = pick(2, 8);
  // Every fourth round is short of blocks, the next one has steps of two rows.
  config.blocks = 80 / config.block_size * (round % 4 == 0 ? 1 : pick(1, 8)) + 1;
  config.limits.max_blocks = config.blocks;
  config.limits.max_rows = round % 4 == 1 ? 2 : pick(3, 64);
  config.limits.max_sequences = pick(2, 32);
  config.engine.prefill_chunk = pick(1, 40);
  config.engine.parking_retry = absl::Milliseconds(1);
  return config;
}

TEST(Parking, RandomParkingChangesNoAnswer) {
  const uint64_t seed = test_seed(41);
  SCOPED_TRACE(replay_note("parking_test", seed));
  std::mt19937_64 random(seed);
  const auto requests = probes();
  std::vector<uint64_t> expected;
  for (const auto& request : requests)
    expected.push_back(EngineBed({}).generate(request).fingerprint());
  int64_t parkings = 0, whole_steps = 0, shared_steps = 0, preemptions = 0;
  for (int round = 0; round < scaled(40, 8); ++round) {
    const EngineBedConfig config = random_config(random, round);
    EngineBed bed(config);
    bed.world().park_seed = random();
    // Most chunks get through sooner or later.
    const int chunk = std::min(config.engine.prefill_chunk, config.limits.max_rows);
    const int most = std::max(1, 40 / chunk);
    bed.world().park_percent = (most + 1) / 2 + static_cast<int>(random() % 3);
    bed.world().waits = round % 2;
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    std::vector<size_t> asked;
    int64_t tokens = 0;
    for (int i = 0; i < 16; ++i) {
      asked.push_back(random() % requests.size());
      runtime::GenerateRequest request = requests[asked.back()];
      request.use_prefix_cache = random() % 4 != 0;
      tokens += int64_t{request.num_sequences} * request.max_tokens;
      streams.push_back(*bed.submit(request));
      if (i % 5 == 0) bed.world().change_cluster();
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      const Answer answer = read_answer(*streams[i], requests[asked[i]].num_sequences);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      ASSERT_EQ(answer.fingerprint(), expected[asked[i]]) << "round " << round;
    }
    ASSERT_EQ(bed.leak(), "");
    const runtime::GeneratorStatus status = bed.engine().status();
    ASSERT_EQ(status.generated_tokens, tokens);
    ASSERT_EQ(status.nonfinite_rows, 0);
    parkings += status.parkings;
    preemptions += status.preemptions;
    whole_steps += bed.world().fully_parked_steps;
    shared_steps += bed.world().partly_parked_steps;
  }
  std::printf("%lld parkings, %lld steps parked whole, %lld in part, %lld preemptions\n",
              static_cast<long long>(parkings), static_cast<long long>(whole_steps),
              static_cast<long long>(shared_steps), static_cast<long long>(preemptions));
  EXPECT_GT(whole_steps, 0);
  EXPECT_GT(shared_steps, 0);
  EXPECT_GT(preemptions, 0);
}

TEST(Parking, OnlyTheSequenceConcernedWaitsAndAChangeOfTheClusterEndsIt) {
  EngineBedConfig config;
  config.engine.parking_retry = absl::Minutes(10);  // only the change of the cluster can help
  EngineBed bed(config);
  std::vector<int32_t> prompt = some_prompt(1, 30, 90);
  prompt[20] = 96;
  bed.world().park_token = 96;
  const auto parked = *bed.submit(request_of(prompt, 10));
  ASSERT_TRUE(eventually([&] { return bed.engine().status().parked_sequences == 1; }));
  for (int i = 0; i < 3; ++i) {
    runtime::GenerateRequest other = request_of(some_prompt(2 + i, 9, 90), 20);
    other.sampling.banned_tokens = {96};
    EXPECT_EQ(bed.generate(other).samples[0].tokens.size(), 20u);
  }
  EXPECT_EQ(bed.engine().status().parked_sequences, 1);
  EXPECT_EQ(bed.engine().status().parkings, 1);
  bed.world().park_token = -1;
  bed.world().change_cluster();
  EXPECT_EQ(read_answer(*parked, 1).samples[0].tokens, greedy_answer(prompt, 10));
  EXPECT_EQ(bed.leak(), "");
}

// Nothing tells of a change: the period alone brings it back, and meanwhile nobody spins.
TEST(Parking, TriesAgainAfterAPeriodAndSleepsMeanwhile) {
  EngineBed bed({});
  bed.world().park_percent = 100;
  const absl::Time start = absl::Now();
  const auto stream = *bed.submit(request_of(some_prompt(1, 30), 10));
  ASSERT_TRUE(eventually([&] { return bed.engine().status().parkings >= 3; }));
  const absl::Duration passed = absl::Now() - start;
  EXPECT_GE(passed, absl::Milliseconds(150));   // 50 and 100
  EXPECT_LT(passed, absl::Milliseconds(1500));  // a loop that nobody wakes sleeps for a second
  EXPECT_TRUE(bed.engine().status().step_loop_alive);
  EXPECT_EQ(bed.engine().status().generated_tokens, 0);
  bed.world().park_percent = 0;
  EXPECT_EQ(read_answer(*stream, 1).samples[0].tokens, greedy_answer(some_prompt(1, 30), 10));
  EXPECT_LT(bed.engine().status().parkings, 10);
  EXPECT_EQ(bed.leak(), "");
}

TEST(Parking, CancelDeadlineAndStopReachTheParked) {
  EngineBedConfig config;
  config.engine.parking_retry = absl::Minutes(10);
  std::shared_ptr<runtime::TokenStream> stopped;
  {
    EngineBed bed(config);
    bed.world().park_percent = 100;
    const auto cancelled = *bed.submit(request_of(some_prompt(1, 30), 10));
    runtime::GenerateRequest request = request_of(some_prompt(2, 30), 10);
    request.deadline = absl::Now() + absl::Milliseconds(100);
    const auto late = *bed.submit(request);
    ASSERT_TRUE(eventually([&] { return bed.engine().status().parked_sequences >= 1; }));
    cancelled->cancel();
    EXPECT_EQ(read_answer(*late, 1).status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(bed.leak(), "");
    EXPECT_EQ(bed.engine().status().requests_cancelled, 1);
    stopped = *bed.submit(request_of(some_prompt(3, 30), 10));
    ASSERT_TRUE(eventually([&] { return bed.engine().status().parked_sequences == 1; }));
    bed.engine().stop();
  }
  EXPECT_EQ(read_answer(*stopped, 1).status.code(), absl::StatusCode::kUnavailable);
}

TEST(Parking, TheWarmUpStepWaitsForItsExperts) {
  EngineBedConfig config{.prepare = [](ScriptedWorld& world) { world.park_percent = 100; }};
  EngineBed bed(config, /*wait_ready=*/false);
  ASSERT_TRUE(eventually([&] { return bed.world().fully_parked_steps >= 2; }));
  EXPECT_FALSE(bed.engine().status().ready);
  bed.world().park_percent = 0;
  EXPECT_TRUE(eventually([&] { return bed.engine().status().ready; }));
  config.engine.warm_up_timeout = absl::Milliseconds(80);
  EngineBed never(config, /*wait_ready=*/false);
  ASSERT_TRUE(eventually([&] {
    return !never.engine().status().not_ready_reason.starts_with("the warm-up step has");
  }));
  EXPECT_THAT(never.engine().status().not_ready_reason,
              HasSubstr("needs experts that nobody has held for 80ms"));
}

}  // namespace
}  // namespace brigade::tests
