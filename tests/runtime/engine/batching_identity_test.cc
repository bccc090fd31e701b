// Whatever shares a step with a request, however its prompt is cut, wherever its blocks come from
// and however often they are taken away: its tokens and log-probability bits are the same. Over the
// scripted model, whose logits depend on the sequence alone, so any difference is the engine's.
#include <random>

#include "gtest/gtest.h"
#include "tests/runtime/engine/engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

std::vector<runtime::GenerateRequest> probes() {
  std::vector<runtime::GenerateRequest> requests;
  for (int i = 0; i < 10; ++i) {
    runtime::GenerateRequest request = request_of(some_prompt(i % 4, 5 + 6 * i), 12 + 3 * i);
    request.sampling.logprobs = 5;
    if (i % 2 == 1) {
      request.sampling.temperature = 0.8;
      request.sampling.seed = static_cast<uint64_t>(100 + i);
      request.sampling.top_k = 20;
      request.sampling.repetition_penalty = 1.1;
    }
    if (i % 5 == 3) request.num_sequences = 3;
    requests.push_back(request);
  }
  return requests;
}

std::vector<uint64_t> alone() {
  std::vector<uint64_t> prints;
  for (const auto& request : probes()) {
    EngineBed bed({});
    prints.push_back(bed.generate(request).fingerprint());
  }
  return prints;
}

TEST(BatchingIdentity, AnswersDoNotDependOnCircumstances) {
  const uint64_t seed = test_seed(21);
  SCOPED_TRACE(replay_note("batching_identity_test", seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  };
  const std::vector<uint64_t> expected = alone();
  const auto requests = probes();
  int64_t preemptions = 0, hits = 0, mixed = 0, largest = 0;
  for (int round = 0; round < scaled(40, 8); ++round) {
    EngineBedConfig config;
    config.microbatches = pick(1, 3);
    config.block_size = pick(2, 8);
    const int longest = 60 + 40;  // positions of the largest probe
    config.blocks = (longest + config.block_size) / config.block_size * pick(1, 6) + pick(0, 9);
    config.limits.max_blocks = config.blocks;
    config.limits.max_rows = pick(3, 64);
    config.limits.max_sequences = pick(2, 32);
    config.limits.max_logit_rows = pick(2, 32);
    config.engine.prefill_chunk = pick(1, 40);
    config.engine.prefill_reserve = pick(1, 16);
    config.engine.max_preemptions = pick(1, 6);
    config.engine.stream_capacity = pick(3, 50);
    if (round % 4 == 0) {  // room for everybody at once
      config.blocks = 24 * 3 * 60;
      config.microbatches = 1;
      config.limits = {.max_rows = 64, .max_sequences = 32, .max_blocks = 60, .max_logit_rows = 32};
    }
    EngineBed bed(config);
    bed.world().waits = pick(0, 2);
    std::vector<std::shared_ptr<runtime::TokenStream>> streams;
    std::vector<size_t> asked;
    for (int i = 0; i < 24; ++i) {
      asked.push_back(static_cast<size_t>(pick(0, 9)));
      runtime::GenerateRequest request = requests[asked.back()];
      request.use_prefix_cache = pick(0, 3) != 0;
      streams.push_back(*bed.submit(request));
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      const Answer answer = read_answer(*streams[i], requests[asked[i]].num_sequences);
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      ASSERT_EQ(answer.fingerprint(), expected[asked[i]])
          << "round " << round << " probe " << asked[i];
    }
    ASSERT_EQ(bed.leak(), "");
    const runtime::GeneratorStatus status = bed.engine().status();
    preemptions += status.preemptions;
    hits += status.prefix_hit_tokens;
    mixed += status.mixed_steps;
    largest = std::max<int64_t>(largest, status.max_sequences_in_step);
  }
  std::printf("%lld preemptions, %lld prefix hit tokens, %lld mixed steps, largest step %lld\n",
              static_cast<long long>(preemptions), static_cast<long long>(hits),
              static_cast<long long>(mixed), static_cast<long long>(largest));
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(hits, 0);
  EXPECT_GT(mixed, 0);
  EXPECT_GE(largest, 16);
}

}  // namespace
}  // namespace brigade::tests
