#include "runtime/sampling/random.h"

#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace brigade::runtime {
namespace {

// Known answers of Philox4x32-10 from the authors' Random123 distribution (kat_vectors).
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, EveryPartOfTheKeyMatters) {
  std::set<double> values;
  for (uint64_t seed : {1ull, 2ull, 1ull << 40})
    for (uint32_t sample : {0u, 1u})
      for (uint32_t position : {0u, 7u})
        for (auto purpose : {RandomPurpose::kGumbel, RandomPurpose::kAccept, RandomPurpose::kResidual,
                             RandomPurpose::kBonus, RandomPurpose::kDraft})
          for (uint32_t token : {0u, 3u})
            values.insert(uniform({seed, sample}, position, purpose, token));
  EXPECT_EQ(values.size(), 3u * 2 * 2 * 5 * 2);
}

TEST(Random, UniformAndGumbelMoments) {
  const int n = 100000;
  double sum = 0, squares = 0, gumbel_sum = 0;
  for (int i = 0; i < n; ++i) {
    const double u = uniform({9, 0}, i, RandomPurpose::kGumbel, 5);
    ASSERT_GT(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
    gumbel_sum += gumbel({9, 0}, i, RandomPurpose::kGumbel, 5);
  }
  // Five standard errors of each mean.
  EXPECT_NEAR(sum / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / n));
  EXPECT_NEAR(gumbel_sum / n, 0.5772156649, 5 * std::sqrt(1.6449340668 / n));
}

}  // namespace
}  // namespace brigade::runtime
