// The law of acceptance: every check on the code itself, each planted fault caught by the check it
// names, and the plain Gumbel draw on which coupling rests.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/sampling/draw.h"
#include "tests/runtime/speculative/law_checks.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

TEST(AcceptLaw, EveryCheckHolds) {
  SCOPED_TRACE(replay_note("accept_law_test", test_seed()));
  for (const LawCheck& check : law_checks()) EXPECT_EQ(check.run(Subject()), "") << check.name;
}

TEST(AcceptLaw, EveryPlantedFaultIsCaughtByTheCheckItNames) {
  const std::vector<PlantedFault> faults = planted_faults();
  EXPECT_GE(faults.size(), 12u);
  for (const PlantedFault& fault : faults) {
    bool found = false;
    for (const LawCheck& check : law_checks()) {
      if (check.name != fault.caught_by) continue;
      found = true;
      const std::string wrong = check.run(fault.subject);
      EXPECT_NE(wrong, "") << fault.name << " was not caught by " << check.name;
      std::printf("%s: %s: %s\n", fault.name.c_str(), check.name.c_str(), wrong.c_str());
    }
    EXPECT_TRUE(found) << fault.name << " names no check: " << fault.caught_by;
  }
}

// 10^6 draws over 8 tokens; 7 degrees of freedom: chi-square above 47 has probability below 1e-7.
TEST(AcceptLaw, GumbelDrawFollowsTheLaw) {
  SCOPED_TRACE(replay_note("accept_law_test", test_seed()));
  runtime::Distribution law;
  law.probabilities = {0.3, 0.05, 0.2, 0.01, 0.14, 0.1, 0.001, 0.199};
  ASSERT_TRUE(runtime::normalise(law.probabilities));
  for (int32_t token = 0; token < 8; ++token) law.tokens.push_back(token * 3);
  std::vector<int> seen(24);
  const int draws = 1000000;
  for (uint32_t i = 0; i < draws; ++i) ++seen[runtime::draw(law, {.seed = test_seed(5)}, i)];
  double chi = 0;
  for (size_t i = 0; i < 8; ++i) {
    const double expected = law.probabilities[i] * draws;
    chi += std::pow(seen[3 * i] - expected, 2) / expected;
  }
  EXPECT_LT(chi, 47);
}

TEST(DraftLaw, RefusesWhatIsNoLaw) {
  runtime::Distribution law;
  const auto message = [&](std::vector<int32_t> tokens, std::vector<float> weights) {
    return std::string(runtime::law_from_weights(tokens, weights, 10, &law).message());
  };
  EXPECT_EQ(message({1, 4}, {0.5f, 1.5f}), "");
  EXPECT_EQ(law.probabilities, (std::vector<double>{0.25, 0.75}));
  EXPECT_NE(message({1, 4}, {1}), "");
  EXPECT_NE(message({4, 1}, {1, 1}), "");
  EXPECT_NE(message({4, 4}, {1, 1}), "");
  EXPECT_NE(message({-1}, {1}), "");
  EXPECT_NE(message({10}, {1}), "");
  EXPECT_NE(message({1}, {-1}), "");
  EXPECT_NE(message({1}, {NAN}), "");
  EXPECT_NE(message({1}, {INFINITY}), "");
  EXPECT_NE(message({1, 2}, {0, 0}), "");
  EXPECT_NE(message({}, {}), "");
}

TEST(DraftLaw, SparseWeightsKeepTheLikeliest) {
  runtime::Distribution full{.tokens = {2, 3, 5, 9}, .probabilities = {0.25, 0.4, 0.1, 0.25}};
  std::vector<int32_t> tokens;
  std::vector<float> weights;
  runtime::sparse_weights(full, 2, &tokens, &weights);
  EXPECT_EQ(tokens, (std::vector<int32_t>{2, 3}));  // the tie of 2 and 9 goes to the lower id
  runtime::sparse_weights(full, 9, &tokens, &weights);
  EXPECT_EQ(tokens, full.tokens);
}

}  // namespace
}  // namespace brigade::tests
