// Grouping of terms by expert: against a stable sort, on every device.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/moe.h"
#include "tests/kernels/op_runner.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;
using tests::OpRunner;

struct Groups {
  std::vector<int32_t> counts, offsets, order, position;
};

Groups group(OpRunner& runner, const std::vector<int32_t>& experts, int num_experts) {
  const size_t terms = experts.size();
  const std::vector<int32_t> poison(std::max<size_t>(terms, num_experts + 1), -7);
  const Buffer experts_at = runner.upload(experts), counts = runner.upload(poison),
               offsets = runner.upload(poison), order = runner.upload(poison),
               position = runner.upload(poison);
  OpRunner::expect_ok(group_terms(runner.stream(), {.experts = experts_at.as<int32_t>(),
                                                    .counts = counts.as<int32_t>(),
                                                    .offsets = offsets.as<int32_t>(),
                                                    .order = order.as<int32_t>(),
                                                    .position = position.as<int32_t>(),
                                                    .terms = static_cast<int>(terms),
                                                    .num_experts = num_experts}));
  Groups groups{runner.download<int32_t>(counts), runner.download<int32_t>(offsets),
                runner.download<int32_t>(order), runner.download<int32_t>(position)};
  groups.counts.resize(num_experts);
  groups.offsets.resize(num_experts + 1);
  groups.order.resize(terms);
  groups.position.resize(terms);
  return groups;
}

void expect_grouped(const std::vector<int32_t>& experts, int num_experts, const Groups& groups) {
  std::vector<int32_t> sorted(experts.size());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::erase_if(sorted, [&](int32_t t) { return experts[t] < 0 || experts[t] >= num_experts; });
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int32_t a, int32_t b) { return experts[a] < experts[b]; });
  ASSERT_EQ(groups.offsets[0], 0);
  for (int e = 0; e < num_experts; ++e) {
    ASSERT_EQ(groups.counts[e], std::count(experts.begin(), experts.end(), e)) << "expert " << e;
    ASSERT_EQ(groups.offsets[e + 1], groups.offsets[e] + groups.counts[e]) << "expert " << e;
  }
  for (size_t place = 0; place < groups.order.size(); ++place) {
    ASSERT_EQ(groups.order[place], place < sorted.size() ? sorted[place] : -7) << "place " << place;
  }
  for (size_t term = 0; term < experts.size(); ++term) {
    const auto at = std::find(sorted.begin(), sorted.end(), static_cast<int32_t>(term));
    ASSERT_EQ(groups.position[term], at == sorted.end() ? -1 : at - sorted.begin())
        << "term " << term;
  }
}

TEST(GroupTerms, AreASortThatKeepsTheOrderInsideAnExpert) {
  std::mt19937_64 random(tests::test_seed());
  for (const DeviceKind kind : tests::device_kinds()) {
    OpRunner runner(kind, 2);
    for (const int terms : {0, 1, 16, 700}) {
      for (const int num_experts : {1, 8, 128, kMaxExperts}) {
        std::vector<int32_t> experts(terms);
        for (int32_t& expert : experts)
          expert = static_cast<int32_t>(random() % (num_experts + 2)) - 1;
        expect_grouped(experts, num_experts, group(runner, experts, num_experts));
      }
    }
  }
}

TEST(GroupTerms, NamesTheFieldThatDoesNotFit) {
  OpRunner runner(DeviceKind::kCpu, 1);
  GroupTermsArgs args;
  EXPECT_THAT(std::string(group_terms(runner.stream(), args).message()), HasSubstr("num_experts"));
  args.num_experts = kMaxExperts + 1;
  EXPECT_THAT(std::string(group_terms(runner.stream(), args).message()), HasSubstr("above 1024"));
  args.num_experts = 4;
  args.terms = -1;
  EXPECT_THAT(std::string(group_terms(runner.stream(), args).message()), HasSubstr("terms"));
  args.terms = 3;
  EXPECT_THAT(std::string(group_terms(runner.stream(), args).message()), HasSubstr("counts"));
}

}  // namespace
}  // namespace brigade::kernels
