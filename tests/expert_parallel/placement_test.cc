#include "expert_parallel/routing/placement.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace brigade::expert_parallel {
namespace {

using ::testing::HasSubstr;

// vllm-project/vllm pull 21497: expert counts that do not divide evenly.
TEST(Placement, EvenSizesDifferByAtMostOne) {
  for (int experts : {1, 5, 8, 30, 60}) {
    for (int ranks : {1, 2, 3, 4, 7, 8}) {
      std::vector<Rank> all(ranks);
      std::iota(all.begin(), all.end(), 0);
      const Placement placement = Placement::even(3, 2, experts, all);
      int least = experts, most = 0, total = 0;
      for (Rank rank : all) {
        const int count = placement.experts_on(rank, 1);
        least = std::min(least, count);
        most = std::max(most, count);
        total += count;
      }
      EXPECT_LE(most - least, 1) << experts << " over " << ranks;
      EXPECT_EQ(total, experts);
    }
  }
}

TEST(Placement, NamesWhatIsWrong) {
  EXPECT_TRUE(Placement::create(1, {{{0, 1}, {1}}}, 2).ok());
  const auto message = [](const auto& result) { return std::string(result.status().message()); };
  EXPECT_TRUE(Placement::create(1, {{{0}, {}}}, 2).ok());  // nobody holds expert 1 now
  EXPECT_THAT(message(Placement::create(1, {{{2}}}, 2)), HasSubstr("names rank 2"));
  EXPECT_THAT(message(Placement::create(1, {{{1, 1}}}, 2)), HasSubstr("rank 1 twice"));
  EXPECT_THAT(message(Placement::create(1, {{{0}}, {{0}, {0}}}, 1)), HasSubstr("layer 1 lists 2"));
}

}  // namespace
}  // namespace brigade::expert_parallel
