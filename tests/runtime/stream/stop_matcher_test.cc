#include "runtime/stream/stop_matcher.h"

#include <random>

#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::runtime {
namespace {

// vllm-project/vllm issue 3574: part of a stop string that spans tokens was shown before the match.
TEST(StopMatcher, AStopStringAcrossPiecesIsNeverShown) {
  StopMatcher matcher({"DEFG"});
  EXPECT_EQ(matcher.append("AB", true), "AB");
  EXPECT_EQ(matcher.append("CD", true), "C");
  EXPECT_EQ(matcher.append("EF", true), "");
  EXPECT_EQ(matcher.append("G and more", true), "");
  EXPECT_EQ(matcher.matched(), "DEFG");
}

TEST(StopMatcher, APrefixThatFailsIsShownWhole) {
  StopMatcher matcher({"DEX"});
  std::string shown;
  for (const char* piece : {"AB", "CD", "EF", "G"}) shown += matcher.append(piece, true);
  EXPECT_EQ(shown + matcher.flush(), "ABCDEFG");
  EXPECT_TRUE(matcher.matched().empty());
}

TEST(StopMatcher, BelowTheMinimumAMatchIsOrdinaryText) {
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.append("xab", false), "xab");
  EXPECT_EQ(matcher.append("a", false), "");
  EXPECT_EQ(matcher.append("b", true), "");  // complete only now: counts
  EXPECT_EQ(matcher.matched(), "ab");
}

// However a text is cut into pieces, the same text is shown and the same stop found.
TEST(StopMatcher, CutsDoNotMatter) {
  const uint64_t seed = tests::test_seed();
  SCOPED_TRACE(tests::replay_note("stop_matcher_test", seed));
  std::mt19937_64 random(seed);
  int matches = 0;
  for (int round = 0; round < tests::scaled(3000, 300); ++round) {
    const auto letters = [&](int length) {
      std::string text;
      for (int i = 0; i < length; ++i) text += char('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (int i = 0; i < 1 + int(random() % 3); ++i) stops.push_back(letters(2 + random() % 5));
    const std::string text = letters(24);
    const auto run = [&](auto next_length) {
      StopMatcher matcher(stops);
      std::string shown;
      for (size_t at = 0; at < text.size() && matcher.matched().empty();) {
        const size_t length = next_length();
        shown += matcher.append(text.substr(at, length), true);
        at += length;
      }
      if (matcher.matched().empty()) shown += matcher.flush();
      return std::make_pair(shown, matcher.matched());
    };
    const auto whole = run([&] { return text.size(); });
    const auto cut = run([&] { return 1 + random() % 4; });
    EXPECT_EQ(whole, cut);
    matches += !whole.second.empty();
    if (!whole.second.empty()) {
      EXPECT_EQ(text.rfind(whole.first + whole.second, 0), 0u);
    }
  }
  EXPECT_GT(matches, 100);
}

}  // namespace
}  // namespace brigade::runtime
