// The op `policy` gives the bits of the host's routine, on every device, for random rules.
#include <random>

#include "gtest/gtest.h"
#include "runtime/sampling/policy.h"
#include "tests/support/policy_case.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

using tests::PolicyCase;

template <typename T>
std::vector<T> part(const std::vector<T>& list, kernels::TokenRange range) {
  return {list.begin() + range.first, list.begin() + range.first + range.count};
}

Distribution host_law(const PolicyCase& c, size_t row, Policy& policy) {
  const kernels::PolicyRow& rules = c.settings[row];
  SamplingParams params;
  params.temperature = rules.temperature;
  params.top_k = rules.top_k;
  params.top_p = rules.top_p;
  params.min_p = rules.min_p;
  params.repetition_penalty = rules.repetition_penalty;
  params.presence_penalty = rules.presence_penalty;
  params.frequency_penalty = rules.frequency_penalty;
  const auto tokens = part(c.bias_tokens, rules.bias);
  const auto values = part(c.bias_values, rules.bias);
  for (size_t i = 0; i < tokens.size(); ++i) params.logit_bias.push_back({tokens[i], values[i]});
  params.allowed_tokens = part(c.allowed_tokens, rules.allowed);
  params.banned_tokens = part(c.banned_tokens, rules.banned);
  TokenCounts counts(part(c.seen_tokens, rules.seen));
  for (int i = rules.seen.first; i < rules.seen.first + rules.seen.count; ++i) {
    for (int n = 0; n < c.seen_counts[i]; ++n) counts.add_output(c.seen_tokens[i]);
  }
  Distribution law;
  const std::span<const float> logits(c.logits.data() + row * c.vocab,
                                      static_cast<size_t>(c.vocab));
  if (!policy.distribution(logits, {.params = &params, .counts = &counts}, &law)) return {};
  return law;
}

TEST(PolicyOp, HasTheBitsOfTheHostsRoutine) {
  std::mt19937_64 random(tests::test_seed());
  int drawn = 0;
  for (const int vocab : {1, 37, 600}) {
    SCOPED_TRACE(tests::replay_note("policy_test", tests::test_seed()));
    const PolicyCase c = PolicyCase::random(random, vocab, tests::scaled(200, 40));
    Policy policy(vocab);
    for (const auto kind : tests::device_kinds()) {
      tests::OpRunner runner(kind, 2);
      const auto laws = c.run(runner);
      for (size_t row = 0; row < laws.size(); ++row) {
        const Distribution law = host_law(c, row, policy);
        ASSERT_EQ(laws[row].tokens, law.tokens) << c.describe(row);
        ASSERT_EQ(laws[row].probabilities, law.probabilities) << c.describe(row);
        drawn += !law.tokens.empty();
      }
      const size_t most = (static_cast<size_t>(vocab) + 8) / 9;
      const auto first = c.run(runner, static_cast<int>(most));
      for (size_t row = 0; row < laws.size(); ++row) {
        const size_t count = std::min(most, laws[row].tokens.size());
        EXPECT_EQ(first[row].tokens,
                  std::vector(laws[row].tokens.begin(), laws[row].tokens.begin() + count));
        EXPECT_EQ(first[row].probabilities, std::vector(laws[row].probabilities.begin(),
                                                        laws[row].probabilities.begin() + count));
      }
    }
  }
  EXPECT_GT(drawn, 100);
}

}  // namespace
}  // namespace brigade::runtime
