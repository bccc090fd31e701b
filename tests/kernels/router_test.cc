// Router selection: hand values from public reports, the committed cases, random rules against the
// reference, ties, broken logits, and equal bits whatever the company.
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/moe.h"
#include "kernels/reference/reference.h"
#include "runtime/files/json.h"
#include "tests/kernels/op_runner.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::OpRunner;

struct Selection {
  std::vector<int32_t> experts;
  std::vector<float> gates;
};

Selection route(OpRunner& runner, const RouterRule& rule, const std::vector<float>& logits,
                const std::vector<float>& bias = {}) {
  const int rows = static_cast<int>(logits.size()) / rule.num_experts;
  const Buffer logits_at = runner.upload(logits), bias_at = runner.upload(bias);
  const Buffer experts = runner.allocate(size_t(rows) * rule.top_k * sizeof(int32_t));
  const Buffer gates = runner.allocate(size_t(rows) * rule.top_k * sizeof(float));
  RouterTopKArgs args;
  args.logits = logits_at.as<float>();
  args.bias = bias.empty() ? nullptr : bias_at.as<float>();
  args.experts = experts.as<int32_t>();
  args.gates = gates.as<float>();
  args.rule = rule;
  args.rows = rows;
  OpRunner::expect_ok(router_top_k(runner.stream(), args));
  return {runner.download<int32_t>(experts), runner.download<float>(gates)};
}

Selection route(const RouterRule& rule, const std::vector<float>& logits,
                const std::vector<float>& bias = {}) {
  OpRunner runner(DeviceKind::kCpu, 1);
  return route(runner, rule, logits, bias);
}

RouterRule softmax_rule(int num_experts, int top_k) {
  RouterRule rule;
  rule.num_experts = num_experts;
  rule.top_k = top_k;
  return rule;
}

// sgl-project/sglang pull 35160: a checkpoint that does not renormalise was served renormalised.
TEST(Router, RenormalisesOnlyWhenTheRuleSaysSo) {
  RouterRule rule = softmax_rule(4, 2);
  Selection chosen = route(rule, {2, 1, 0, -1});
  EXPECT_THAT(chosen.experts, ElementsAre(0, 1));
  EXPECT_NEAR(chosen.gates[0], 0.6439f, 5e-5f);
  EXPECT_NEAR(chosen.gates[1], 0.2369f, 5e-5f);
  rule.renormalize = true;
  chosen = route(rule, {2, 1, 0, -1});
  EXPECT_THAT(chosen.experts, ElementsAre(0, 1));
  EXPECT_NEAR(chosen.gates[0], 0.7311f, 5e-5f);
  EXPECT_NEAR(chosen.gates[1], 0.2689f, 5e-5f);
}

// vllm-project/vllm pull 13474: groups by the sum of their two best scores, or by the best.
TEST(Router, GroupScoreDecidesWhichGroupsStay) {
  std::vector<float> logits;
  for (const double p : {.30, .05, .20, .19, .02, .01, .26, .02}) {
    logits.push_back(static_cast<float>(std::log(p / (1 - p))));  // sigmoid gives p back
  }
  RouterRule rule = softmax_rule(8, 2);
  rule.scoring = RouterScoring::kSigmoid;
  rule.num_groups = 4;
  rule.groups_kept = 2;
  rule.group_score = GroupScore::kSumOfTwoBest;
  EXPECT_THAT(route(rule, logits).experts, ElementsAre(0, 2));
  rule.group_score = GroupScore::kMax;
  EXPECT_THAT(route(rule, logits).experts, ElementsAre(0, 6));
}

// vllm-project/vllm pull 12002: the bias chooses, the gates stay unbiased.
TEST(Router, TheBiasOnlySelects) {
  RouterRule rule = softmax_rule(4, 2);
  rule.scoring = RouterScoring::kSigmoid;
  rule.renormalize = true;
  rule.renormalize_epsilon = 1e-20f;
  rule.scale = 2.5f;
  const Selection chosen = route(rule, {2, 1, 0, -1}, {0, 0, .5f, .6f});
  EXPECT_THAT(chosen.experts, ElementsAre(2, 0));
  EXPECT_NEAR(chosen.gates[0], 2.5f * 0.3621f, 2e-4f);
  EXPECT_NEAR(chosen.gates[1], 2.5f * 0.6379f, 2e-4f);
}

TEST(Router, MeetsTheCommittedCases) {
  const auto file = runtime::read_json_file(tests::source_dir() + "/tests/data/routing/routing_cases.json");
  ASSERT_TRUE(file.ok()) << file.status();
  const auto& cases = (*file)["cases"];
  ASSERT_GE(cases.size(), 100u);
  for (const auto& c : cases) {
    SCOPED_TRACE(c["name"].get<std::string>());
    RouterRule rule = softmax_rule(c["num_experts"], c["top_k"]);
    const bool sigmoid = c["scoring"].get<std::string>() == "sigmoid";
    rule.scoring = sigmoid ? RouterScoring::kSigmoid : RouterScoring::kSoftmax;
    rule.softmax_after_top_k = c["softmax_after_topk"];
    rule.renormalize = c["renormalize"];
    rule.renormalize_epsilon = c["renormalize_epsilon"];
    rule.scale = c["scale"];
    rule.num_groups = c["num_groups"];
    rule.groups_kept = c["groups_kept"];
    const bool two = c["group_score"].get<std::string>() == "top2sum";
    rule.group_score = two ? GroupScore::kSumOfTwoBest : GroupScore::kMax;
    const auto bias = c["bias"].is_null() ? std::vector<float>() : c["bias"].get<std::vector<float>>();
    const Selection chosen = route(rule, c["logits"].get<std::vector<float>>(), bias);
    EXPECT_EQ(chosen.experts, c["expected_ids"].get<std::vector<int32_t>>());
    tests::expect_close(chosen.gates, c["expected_gates"].get<std::vector<float>>(), 1e-30f, 1e-5f);
  }
}

struct RouterCase {
  RouterRule rule;
  std::vector<float> logits, bias;
};

RouterCase random_case(std::mt19937_64& random, int rows) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  RouterCase c;
  c.rule.num_groups = pick(0, 1) == 1 ? pick(2, 6) : 1;
  c.rule.num_experts = c.rule.num_groups * pick(2, 20);
  c.rule.groups_kept = pick(1, c.rule.num_groups);
  const int eligible = c.rule.num_experts / c.rule.num_groups * c.rule.groups_kept;
  c.rule.top_k = pick(1, std::min(eligible, 8));
  c.rule.scoring = pick(0, 1) == 1 ? RouterScoring::kSigmoid : RouterScoring::kSoftmax;
  c.rule.softmax_after_top_k = c.rule.scoring == RouterScoring::kSoftmax && pick(0, 2) == 0;
  c.rule.renormalize = pick(0, 1) == 1;
  c.rule.scale = pick(0, 1) == 1 ? 2.5f : 1.0f;
  c.rule.group_score = pick(0, 1) == 1 ? GroupScore::kSumOfTwoBest : GroupScore::kMax;
  c.logits = tests::random_floats(random, size_t(rows) * c.rule.num_experts, 2);
  if (pick(0, 1) == 1) c.bias = tests::random_floats(random, c.rule.num_experts, 0.2f);
  return c;
}

TEST(Router, AgreesWithTheReferenceOnRandomRules) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("kernels_router_test", seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < tests::scaled(300, 60); ++i) {
    const RouterCase c = random_case(random, 6);
    OpRunner::expect_ok(validate(c.rule));
    Selection expected;
    expected.experts.resize(size_t(6) * c.rule.top_k);
    expected.gates.resize(expected.experts.size());
    RouterTopKArgs args;
    args.logits = c.logits.data();
    args.bias = c.bias.empty() ? nullptr : c.bias.data();
    args.experts = expected.experts.data();
    args.gates = expected.gates.data();
    args.rule = c.rule;
    args.rows = 6;
    reference::router_top_k(args);
    OpRunner runner(i % 8 == 0 ? DeviceKind::kCpuAsync : DeviceKind::kCpu, 2);
    const Selection actual = route(runner, c.rule, c.logits, c.bias);
    // Random scores closer than f32 can tell are one in a million draws; the gates then still agree.
    if (actual.experts == expected.experts) {
      tests::expect_close(actual.gates, expected.gates, 1e-30f, 1e-5f);
    } else {
      tests::expect_close(actual.gates, expected.gates, 1e-5f, 1e-5f);
    }
  }
}

TEST(Router, ARowDependsOnItselfAlone) {
  std::mt19937_64 random(tests::test_seed());
  RouterRule rule = softmax_rule(60, 6);
  rule.renormalize = true;
  const std::vector<float> logits = tests::random_floats(random, size_t(67) * 60, 2);
  EXPECT_EQ(0, tests::count_differences(
                   [&](OpRunner& runner, int first, int count) {
                     const std::vector<float> part(logits.begin() + first * 60,
                                                   logits.begin() + (first + count) * 60);
                     const Selection chosen = route(runner, rule, part);
                     std::vector<float> both;
                     for (size_t i = 0; i < chosen.gates.size(); ++i) {
                       both.push_back(static_cast<float>(chosen.experts[i]));
                       both.push_back(chosen.gates[i]);
                     }
                     return both;
                   },
                   67));
}

// Broken logits choose distinct experts in range, the same ones each time, and their gates are NaN so
// that the row is noticed where logits are checked.
TEST(Router, BrokenLogitsStayInRangeAndAreFlagged) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const bool sigmoid : {false, true}) {
    RouterRule rule = softmax_rule(4, 3);
    rule.scoring = sigmoid ? RouterScoring::kSigmoid : RouterScoring::kSoftmax;
    rule.num_groups = 2;
    rule.groups_kept = 2;
    const std::vector<std::vector<float>> broken = {
        {kNan, 1, 0, 2}, {kNan, kNan, kNan, kNan}, {0, kInf, 1, -1}, {-kInf, -kInf, -kInf, -kInf}};
    for (const std::vector<float>& logits : broken) {
      const Selection chosen = route(rule, logits);
      EXPECT_EQ(std::set<int32_t>(chosen.experts.begin(), chosen.experts.end()).size(), 3u);
      for (const int32_t expert : chosen.experts) EXPECT_TRUE(expert >= 0 && expert < 4);
      for (const float gate : chosen.gates) EXPECT_TRUE(std::isnan(gate));
    }
    EXPECT_THAT(route(rule, broken[0]).experts, ElementsAre(3, 1, 2));
    EXPECT_EQ(route(rule, broken[2]).experts[0], 1);
    // One expert at -inf is a plain zero, not an error.
    const Selection masked = route(rule, {1, -kInf, 2, 0});
    EXPECT_THAT(masked.experts, ElementsAre(2, 0, 3));
    EXPECT_FALSE(std::isnan(masked.gates[0]));
  }
}

TEST(Router, RulesThatDoNotFitAreNamed) {
  const auto message = [](auto change) {
    RouterRule rule = softmax_rule(8, 2);
    change(rule);
    return std::string(validate(rule).message());
  };
  EXPECT_EQ(message([](RouterRule&) {}), "");
  EXPECT_THAT(message([](RouterRule& r) { r.num_experts = 0; }), HasSubstr("num_experts is 0"));
  EXPECT_THAT(message([](RouterRule& r) { r.num_experts = 1025; }), HasSubstr("num_experts is 1025"));
  EXPECT_THAT(message([](RouterRule& r) { r.top_k = 9; }), HasSubstr("top_k is 9, above 8"));
  EXPECT_THAT(message([](RouterRule& r) { r.num_groups = 3; }), HasSubstr("num_groups 3"));
  EXPECT_THAT(message([](RouterRule& r) { r.groups_kept = 2; }), HasSubstr("groups_kept is 2"));
  EXPECT_THAT(message([](RouterRule& r) { r.num_groups = 8; }), HasSubstr("kept groups"));
  EXPECT_THAT(message([](RouterRule& r) { r.scale = std::nanf(""); }), HasSubstr("scale"));
  EXPECT_THAT(message([](RouterRule& r) {
                r.scoring = RouterScoring::kSigmoid;
                r.softmax_after_top_k = true;
              }),
              HasSubstr("softmax_after_top_k"));
  EXPECT_THAT(message([](RouterRule& r) {
                r.num_groups = 8;
                r.groups_kept = 2;
                r.group_score = GroupScore::kSumOfTwoBest;
              }),
              HasSubstr("groups have one expert"));
}

}  // namespace
}  // namespace brigade::kernels
