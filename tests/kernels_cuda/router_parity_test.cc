// Router selection on CUDA against the CPU: every kind of rule, ties, broken logits.
#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/moe.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::expect_parity;
using tests::Tensors;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class RouterParity : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  RouterRule random_rule() {
    RouterRule rule;
    rule.num_groups = pick(0, 1) == 1 ? pick(2, 8) : 1;
    rule.num_experts = rule.num_groups * pick(2, 24);
    rule.groups_kept = pick(1, rule.num_groups);
    rule.top_k = pick(1, std::min(12, rule.num_experts / rule.num_groups * rule.groups_kept));
    rule.scoring = pick(0, 1) == 1 ? RouterScoring::kSigmoid : RouterScoring::kSoftmax;
    rule.softmax_after_top_k = rule.scoring == RouterScoring::kSoftmax && pick(0, 2) == 0;
    rule.renormalize = pick(0, 1) == 1;
    rule.renormalize_epsilon = pick(0, 1) == 1 ? 1e-20f : 0;
    rule.scale = pick(0, 1) == 1 ? 2.5f : 1.0f;
    rule.group_score = pick(0, 1) == 1 ? GroupScore::kSumOfTwoBest : GroupScore::kMax;
    return rule;
  }

  // Few distinct values, so that ties are everywhere, in every third row; some rows are broken.
  std::vector<float> random_logits(int rows, int experts) {
    auto logits = tests::random_floats(random_, size_t(rows) * experts, 3);
    for (int row = 0; row < rows; ++row) {
      float* at = logits.data() + size_t(row) * experts;
      if (row % 3 == 1) {
        for (int i = 0; i < experts; ++i)
          at[i] = pick(0, 3) == 0 ? -0.0f : static_cast<float>(pick(0, 2));
      }
      if (row % 8 == 5) at[pick(0, experts - 1)] = kNan;
      if (row % 8 == 6) at[pick(0, experts - 1)] = kInfinity;
      if (row % 8 == 7) at[pick(0, experts - 1)] = -kInfinity;
      if (row == 9) std::fill(at, at + experts, -kInfinity);
      if (row == 10) std::fill(at, at + experts, kNan);
      if (row == 11) at[0] = 100, at[experts - 1] = -200;
    }
    return logits;
  }

  void check(const RouterRule& rule, int rows, bool biased) {
    SCOPED_TRACE(::testing::Message()
                 << rows << " rows, experts " << rule.num_experts << " top_k " << rule.top_k
                 << " groups " << rule.groups_kept << " of " << rule.num_groups << " sigmoid "
                 << (rule.scoring == RouterScoring::kSigmoid) << " softmax after "
                 << rule.softmax_after_top_k << (biased ? " biased" : ""));
    const auto logits = random_logits(rows, rule.num_experts);
    auto bias = tests::random_floats(random_, rule.num_experts);
    if (rows > 20) bias[0] = -kInfinity;
    expect_parity(router_top_k, [&](Tensors& t) {
      return RouterTopKArgs{.logits = t.in(logits),
                            .bias = biased ? t.in(bias) : nullptr,
                            .experts = t.out<int32_t>(size_t(rows) * rule.top_k),
                            .gates = t.out<float>(size_t(rows) * rule.top_k),
                            .rule = rule,
                            .rows = rows};
    });
  }
};

TEST_F(RouterParity, RandomRules) {
  for (int i = 0; i < tests::scaled(40, 15); ++i) check(random_rule(), 13, i % 2 == 0);
}

TEST_F(RouterParity, Families) {
  RouterRule mixtral{.num_experts = 8, .top_k = 2, .renormalize = true};
  RouterRule qwen{.num_experts = 128, .top_k = 8, .renormalize = true};
  RouterRule largest{.num_experts = kMaxExperts, .top_k = kMaxExpertsPerToken};
  RouterRule deepseek{.num_experts = 256,
                      .top_k = 8,
                      .scoring = RouterScoring::kSigmoid,
                      .renormalize = true,
                      .renormalize_epsilon = 1e-20f,
                      .scale = 2.5f,
                      .num_groups = 8,
                      .groups_kept = 4,
                      .group_score = GroupScore::kSumOfTwoBest};
  for (const int rows : {1, 65}) {
    check(mixtral, rows, false);
    check(qwen, rows, false);
    check(deepseek, rows, true);
  }
  check(largest, 2, false);
  largest.num_groups = largest.num_experts;  // groups of one
  largest.groups_kept = 64;
  check(largest, 2, true);
}

TEST_F(RouterParity, GroupTerms) {
  for (const int terms : {0, 1, 65, 700}) {
    for (const int num_experts : {1, 8, 100}) {
      SCOPED_TRACE(::testing::Message() << terms << " terms, " << num_experts << " experts");
      std::vector<int32_t> experts(terms);
      for (int32_t& expert : experts) expert = pick(-1, num_experts);
      expect_parity(group_terms, [&](Tensors& t) {
        return GroupTermsArgs{.experts = t.in(experts),
                              .counts = t.out<int32_t>(num_experts),
                              .offsets = t.out<int32_t>(num_experts + 1),
                              .order = t.out<int32_t>(terms),
                              .position = t.out<int32_t>(terms),
                              .terms = terms,
                              .num_experts = num_experts};
      });
    }
  }
}

// The check is worth something only if it sees what it is for: gates that differ a little, and a row
// that was not written.
TEST_F(RouterParity, TheCheckSeesSmallDifferencesAndMissingRows) {
  const RouterRule rule{.num_experts = 16, .top_k = 4};
  const auto logits = random_logits(5, 16);
  std::vector<float> nudged = logits;
  *std::max_element(nudged.begin(), nudged.begin() + 16) += 0x1p-10f;
  const auto difference = [&](const std::vector<float>& on_cuda, int rows_on_cuda) {
    return tests::parity_difference(router_top_k, [&](Tensors& t) {
      const bool cuda = t.runner().device().kind() == DeviceKind::kCuda;
      return RouterTopKArgs{.logits = t.in(cuda ? on_cuda : logits),
                            .experts = t.out<int32_t>(20),
                            .gates = t.out<float>(20),
                            .rule = rule,
                            .rows = cuda ? rows_on_cuda : 5};
    });
  };
  EXPECT_EQ("", difference(logits, 5));
  EXPECT_NE("", difference(nudged, 5));
  EXPECT_NE("", difference(logits, 4));
}

}  // namespace
}  // namespace brigade::kernels
