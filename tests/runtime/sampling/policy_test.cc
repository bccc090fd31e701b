#include "runtime/sampling/policy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "runtime/sampling/draw.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

constexpr int kVocab = 97;

struct History {
  std::vector<int32_t> prompt, output;
};

// The policy again, written the slow and obvious way over a map, with the C library's functions.
std::map<int32_t, double> reference(const std::vector<float>& logits, const SamplingParams& params,
                                    const History& history, const std::vector<int32_t>& forbidden) {
  std::map<int32_t, double> score;
  for (int t = 0; t < kVocab; ++t) score[t] = logits[t];
  for (auto [t, bias] : params.logit_bias) score[t] += bias;
  for (int t = 0; t < kVocab; ++t) {
    const auto count = std::count(history.output.begin(), history.output.end(), t);
    const bool in_prompt = std::count(history.prompt.begin(), history.prompt.end(), t) > 0;
    if (in_prompt || count > 0) {
      score[t] = score[t] > 0 ? score[t] / params.repetition_penalty
                              : score[t] * params.repetition_penalty;
    }
    if (count > 0) score[t] -= params.presence_penalty;
    score[t] -= params.frequency_penalty * count;
  }
  for (int t = 0; t < kVocab; ++t) {
    const auto& allowed = params.allowed_tokens;
    const bool is_allowed = allowed.empty() || std::count(allowed.begin(), allowed.end(), t) > 0;
    const bool is_banned = std::count(params.banned_tokens.begin(), params.banned_tokens.end(), t) > 0 ||
                           std::count(forbidden.begin(), forbidden.end(), t) > 0;
    if (!is_allowed || is_banned) score.erase(t);
  }
  std::vector<std::pair<double, int32_t>> order;  // best first
  for (auto [t, s] : score) order.push_back({s, t});
  std::stable_sort(order.begin(), order.end(), [](auto a, auto b) { return a.first > b.first; });
  if (params.temperature == 0) return {{order[0].second, 1.0}};
  if (params.top_k > 0 && order.size() > size_t(params.top_k)) order.resize(params.top_k);
  double sum = 0;
  for (auto& [s, t] : order) sum += std::exp((s - order[0].first) / params.temperature);
  std::map<int32_t, double> kept;
  double mass = 0;
  const double best = order[0].first;
  for (auto [s, t] : order) {
    const double p = std::exp((s - best) / params.temperature) / sum;
    if (params.top_p < 1 && mass >= params.top_p) break;
    mass += p;
    if (p * sum >= params.min_p) kept[t] = p;
  }
  double total = 0;
  for (auto [t, p] : kept) total += p;
  for (auto& [t, p] : kept) p /= total;
  return kept;
}

struct Option {
  const char* name;
  std::function<void(SamplingParams*)> set;
};
const Option kOptions[] = {
    {"temperature 0.7", [](auto* p) { p->temperature = 0.7; }},
    {"temperature 2", [](auto* p) { p->temperature = 2; }},
    {"top_k 5", [](auto* p) { p->top_k = 5; }},
    {"top_k 1", [](auto* p) { p->top_k = 1; }},
    {"top_p 0.8", [](auto* p) { p->top_p = 0.8; }},
    {"top_p tiny", [](auto* p) { p->top_p = 1e-6; }},
    {"min_p 0.1", [](auto* p) { p->min_p = 0.1; }},
    {"repetition", [](auto* p) { p->repetition_penalty = 1.3; }},
    {"presence", [](auto* p) { p->presence_penalty = 0.8; }},
    {"frequency", [](auto* p) { p->frequency_penalty = 0.4; }},
    {"bias", [](auto* p) { p->logit_bias = {{3, 4.f}, {10, -2.f}, {3, 1.f}}; }},
    {"allowed", [](auto* p) { p->allowed_tokens = {1, 3, 4, 5, 9, 20, 33, 60, 96}; }},
    {"banned", [](auto* p) { p->banned_tokens = {0, 3, 50}; }},
    {"greedy", [](auto* p) { p->temperature = 0; }},
};

std::vector<float> random_logits(std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

void expect_equal(const Distribution& got, const std::map<int32_t, double>& want) {
  ASSERT_EQ(got.tokens.size(), want.size());
  size_t i = 0;
  for (auto [token, probability] : want) {
    EXPECT_EQ(got.tokens[i], token);
    EXPECT_NEAR(got.probabilities[i], probability, 1e-12);
    ++i;
  }
}

TEST(Policy, EveryOptionAndEveryPairMatchesTheReference) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("policy_test", seed));
  std::mt19937_64 random(seed);
  Policy policy(kVocab);
  Distribution got;
  const History history{.prompt = {1, 2, 3, 3, 60}, .output = {3, 9, 9, 20}};
  TokenCounts counts(history.prompt);
  for (int32_t token : history.output) counts.add_output(token);
  const std::vector<int32_t> forbidden = {20, 33};
  int compared = 0;
  for (const Option& first : kOptions) {
    for (const Option& second : kOptions) {
      for (int round = 0; round < tests::scaled(20, 3); ++round) {
        SCOPED_TRACE(std::string(first.name) + " + " + second.name);
        SamplingParams params;
        params.temperature = 1;
        first.set(&params);
        second.set(&params);
        const std::vector<float> logits = random_logits(random);
        const bool with_forbidden = round % 2 == 1;
        PolicyInput input{&params, &counts, {}};
        if (with_forbidden) input.forbidden_now = forbidden;
        ASSERT_TRUE(policy.distribution(logits, input, &got));
        expect_equal(got, reference(logits, params, history,
                                    with_forbidden ? forbidden : std::vector<int32_t>{}));
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 14 * 14 * 3);
}

TEST(Policy, TiesGoToTheLowerIdAndTopPIncludesTheTokenThatCrosses) {
  Policy policy(4);
  Distribution got;
  SamplingParams greedy;
  ASSERT_TRUE(policy.distribution(std::vector<float>{1, 2, 2, 0}, {&greedy, nullptr, {}}, &got));
  EXPECT_EQ(got.tokens, std::vector<int32_t>{1});
  SamplingParams half{.temperature = 1, .top_p = 0.5};
  // Probabilities 0.4, 0.4, 0.1, 0.1: the second crosses one half and stays.
  const std::vector<float> logits = {std::log(0.4f), std::log(0.4f), std::log(0.1f), std::log(0.1f)};
  ASSERT_TRUE(policy.distribution(logits, {&half, nullptr, {}}, &got));
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{0, 1}));
  SamplingParams one{.temperature = 1, .top_k = 1};
  ASSERT_TRUE(policy.distribution(std::vector<float>{5, 5, 5, 5}, {&one, nullptr, {}}, &got));
  EXPECT_EQ(got.tokens, std::vector<int32_t>{0});
}

// sgl-project/sglang issue 33187: NaN logits must end a request, not turn into token 0.
TEST(Policy, NeverSamplesFromABrokenRow) {
  Policy policy(3);
  Distribution got;
  SamplingParams params{.temperature = 1};
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const auto& row : std::vector<std::vector<float>>{
           {0, nan, 1}, {0, infinity, 1}, {-infinity, -infinity, -infinity}}) {
    EXPECT_FALSE(policy.distribution(row, {&params, nullptr, {}}, &got));
  }
  EXPECT_TRUE(policy.distribution(std::vector<float>{-infinity, 0, 1}, {&params, nullptr, {}}, &got));
  EXPECT_EQ(got.tokens, (std::vector<int32_t>{1, 2}));
  params.banned_tokens = {1, 2};
  EXPECT_FALSE(policy.distribution(std::vector<float>{-infinity, 0, 1}, {&params, nullptr, {}}, &got));
}

TEST(TokenCounts, ADraftTokenCanBeTakenBack) {
  TokenCounts counts(std::vector<int32_t>{5});
  counts.add_output(5);
  counts.add_output(7);
  counts.remove_output(7);
  int seen = 0;
  counts.for_each([&](int32_t token, bool in_prompt, int output_count) {
    if (token == 5) {
      EXPECT_TRUE(in_prompt && output_count == 1);
    } else {
      EXPECT_TRUE(token == 7 && !in_prompt && output_count == 0);
    }
    ++seen;
  });
  EXPECT_EQ(seen, 2);
}

// Chi-square of 50,000 draws against the distribution they are drawn from.
TEST(Draw, FollowsTheDistribution) {
  Distribution distribution{{2, 5, 6, 9}, {0.5, 0.3, 0.15, 0.05}};
  std::map<int32_t, int> seen;
  const int n = 50000;
  for (int i = 0; i < n; ++i) ++seen[draw(distribution, {11, 0}, i)];
  double chi = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double expected = n * distribution.probabilities[i];
    const double difference = seen[distribution.tokens[i]] - expected;
    chi += difference * difference / expected;
  }
  EXPECT_LT(chi, 21.1);  // 3 degrees of freedom, p = 1e-4
}

// The order of candidates or the company of others must not change a token's noise.
TEST(Draw, DependsOnSeedPositionAndTokenOnly) {
  const Distribution two{{4, 8}, {0.5, 0.5}};
  const Distribution three{{1, 4, 8}, {1e-9, 0.5, 0.5 - 1e-9}};
  int differs = 0;
  for (int i = 0; i < 1000; ++i) differs += draw(two, {3, 1}, i) != draw(three, {3, 1}, i);
  EXPECT_EQ(differs, 0);
}

TEST(LogProbability, MatchesADirectSum) {
  const std::vector<float> logits = {1, 3, 3, -2};
  double sum = 0;
  for (float logit : logits) sum += std::exp(double(logit));
  const TokenLogprob got = log_probability(logits, 2, 3);
  EXPECT_NEAR(got.logprob, 3 - std::log(sum), 1e-13);
  EXPECT_EQ(got.rank, 2);  // token 1 has the same logit and the lower id
  ASSERT_EQ(got.top.size(), 3u);
  EXPECT_EQ(got.top[0].first, 1);
  EXPECT_EQ(got.top[1].first, 2);
  EXPECT_EQ(got.top[2].first, 0);
  EXPECT_NEAR(got.top[2].second, 1 - std::log(sum), 1e-13);
  EXPECT_EQ(log_probability(logits, 0, 10).top.size(), 4u);
}

}  // namespace
}  // namespace brigade::runtime
