// Drafters: the list they fill, prompt lookup against a search by hand, and scripts through verify
// passes with the number of tokens a pass that theory gives.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/accept.h"
#include "runtime/speculative/prompt_lookup.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/scripted_drafter.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::DraftList;
using Text = std::vector<int32_t>;

Text tokens_of(const DraftList& drafts) {
  Text tokens;
  for (const runtime::DraftedToken& draft : drafts.tokens()) tokens.push_back(draft.token);
  return tokens;
}

TEST(DraftList, NothingFollowsAMissingToken) {
  DraftList drafts(10, 3, 2);
  EXPECT_TRUE(drafts.push(9));
  EXPECT_FALSE(drafts.push(10));
  EXPECT_FALSE(drafts.push(1));
  EXPECT_EQ(drafts.size(), 1);
  drafts.clear();
  EXPECT_FALSE(drafts.push(-1));
  drafts.clear();
  const std::array<int32_t, 3> ids = {1, 2, 3};
  const std::array<double, 3> law = {0.25, 0.25, 0.5};
  EXPECT_TRUE(drafts.push_sparse(2, std::span(ids).first(2), std::span(law).first(2)));
  EXPECT_FALSE(drafts.push_sparse(2, ids, law));
  EXPECT_FALSE(drafts.push(1));
  drafts.clear();
  for (int32_t token : {1, 2, 3}) {
    EXPECT_TRUE(drafts.push_sparse(token, std::span(ids).last(2), std::span(law).last(2)));
  }
  EXPECT_FALSE(drafts.push(4));
  EXPECT_EQ(tokens_of(drafts), (Text{1, 2, 3}));
  EXPECT_EQ(runtime::draft_probability(drafts.tokens()[0], 3), 0.5);
}

// The same rule by searching the whole text.
Text search(const Text& text, int min_match, int max_match, int wanted) {
  for (int n = std::min<int>(max_match, static_cast<int>(text.size())); n >= min_match; --n) {
    for (int end = static_cast<int>(text.size()) - 1; end >= n; --end) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + end - n)) continue;
      Text copy = text;
      for (int i = 0; i < wanted; ++i) copy.push_back(copy[static_cast<size_t>(end + i)]);
      return Text(copy.begin() + static_cast<std::ptrdiff_t>(text.size()), copy.end());
    }
  }
  return {};
}

TEST(PromptLookup, FindsWhatASearchOfTheWholeTextFinds) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("drafter_test", seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < scaled(60, 10); ++round) {
    const int vocab = 2 + static_cast<int>(random() % 12);
    const int max_match = 1 + static_cast<int>(random() % 4);
    const int min_match = 1 + static_cast<int>(random() % static_cast<uint64_t>(max_match));
    runtime::PromptLookup lookup({.min_match = min_match,
                                  .max_match = max_match,
                                  .max_positions = 1 << 14,
                                  .max_slots = 1 << 15});
    DraftList drafts(vocab, 8);
    Text text;
    while (text.size() < 250) {
      // Tokens come one at a time or in bursts, as a pass commits them.
      for (uint64_t burst = 1 + random() % 4; burst > 0; --burst) {
        text.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
      }
      const int wanted = static_cast<int>(random() % 9);
      lookup.draft(text, wanted, &drafts);
      ASSERT_EQ(tokens_of(drafts), search(text, min_match, max_match, wanted));
    }
  }
}

TEST(PromptLookup, AFullIndexGivesFewerDraftsNeverWrongPlaces) {
  std::mt19937_64 random(3);
  runtime::PromptLookup lookup(
      {.min_match = 2, .max_match = 3, .max_positions = 100000, .max_slots = 16});
  DraftList drafts(6, 4);
  Text text;
  int found = 0;
  for (int i = 0; i < 3000; ++i) {
    text.push_back(static_cast<int32_t>(random() % 6));
    lookup.draft(text, 1, &drafts);
    if (drafts.size() == 0) continue;
    ++found;
    // The drafted token must have followed the last two tokens somewhere.
    bool seen = false;
    for (size_t end = 2; end < text.size() && !seen; ++end) {
      seen = text[end - 2] == text[text.size() - 2] && text[end - 1] == text.back() &&
             text[end] == drafts.tokens()[0].token;
    }
    ASSERT_TRUE(seen);
  }
  EXPECT_GT(found, 100);
}

TEST(PromptLookup, AllocatesNothingAfterConstruction) {
  Text text;
  for (int32_t i = 0; i < 5000; ++i) text.push_back(i % 37);
  runtime::PromptLookup lookup({.max_positions = 5000});
  DraftList drafts(64, 8);
  const uint64_t before = allocations().count;
  for (size_t length = 100; length <= text.size(); length += 3) {
    lookup.draft(std::span(text).first(length), 8, &drafts);
    ASSERT_EQ(drafts.size(), 8);
    for (size_t i = 0; i < 8; ++i) {
      ASSERT_EQ(drafts.tokens()[i].token, static_cast<int32_t>((length + i) % 37));
    }
  }
  EXPECT_EQ(allocations().count, before);
}

// A target that goes on as `truth` says, greedily.
class Dictation final : public runtime::Continuation {
 public:
  Dictation(const Text& truth, size_t prompt, int vocab)
      : truth_(truth),
        vocab_(vocab),
        text_(truth.begin(), truth.begin() + static_cast<std::ptrdiff_t>(prompt)) {}

  runtime::PolicyInput policy_input() const override {
    return {.params = &params_, .counts = nullptr, .forbidden_now = {}};
  }
  uint32_t position() const override { return static_cast<uint32_t>(text_.size()); }
  bool commit(int32_t token, std::span<const float>) override {
    text_.push_back(token);
    return text_.size() < truth_.size();
  }
  runtime::Verdict pass(runtime::Drafter* drafter, int depth, bool run_ahead) {
    DraftList drafts(vocab_, depth + 1);
    drafter->draft(text_, depth, &drafts);
    const int tested = std::min(drafts.size(), depth);
    if (run_ahead) drafter->run_ahead(text_, &drafts);
    std::vector<std::vector<float>> logits(static_cast<size_t>(tested) + 1,
                                           std::vector<float>(static_cast<size_t>(vocab_)));
    std::vector<runtime::TargetRow> rows;
    for (size_t i = 0; i < logits.size(); ++i) {
      const size_t position = text_.size() + i;
      if (position < truth_.size()) logits[i][static_cast<size_t>(truth_[position])] = 1;
      rows.push_back({.logits = logits[i], .law = {}});
    }
    runtime::VerifyScratch scratch(vocab_);
    runtime::KeyedChance chance({});
    return runtime::verify(
        {.rows = rows,
         .drafts = drafts.tokens().first(static_cast<size_t>(tested)),
         .run_ahead =
             drafts.size() > tested ? &drafts.tokens()[static_cast<size_t>(tested)] : nullptr},
        &scratch, &chance, this);
  }
  const Text& text() const { return text_; }

 private:
  const Text truth_;
  const int vocab_;
  Text text_;
  runtime::SamplingParams params_;
};

TEST(Speculation, TokensPerPassFollowTheAcceptance) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("drafter_test", seed));
  std::mt19937_64 random(seed);
  const int vocab = 16;
  for (const double right : {0.3, 0.6, 0.8, 0.9}) {
    for (const int depth : {2, 4, 8}) {
      Text truth(20000);
      for (int32_t& token : truth) token = static_cast<int32_t>(random() % vocab);
      ScriptedDrafter drafter(DraftScript::kSometimes, truth, vocab, right, random());
      Dictation target(truth, 1, vocab);
      double sum = 0, squares = 0, passes = 0;
      while (target.text().size() + 20 < truth.size()) {
        const double tokens = target.pass(&drafter, depth, false).committed;
        sum += tokens;
        squares += tokens * tokens;
        ++passes;
      }
      const double mean = sum / passes;
      const double error = std::sqrt((squares / passes - mean * mean) / passes);
      const double expected = (1 - std::pow(right, depth + 1)) / (1 - right);
      EXPECT_NEAR(mean, expected, 5 * error) << "right " << right << ", depth " << depth;
      EXPECT_TRUE(std::equal(target.text().begin(), target.text().end(), truth.begin()));
    }
  }
}

// "out for" + "delivery and will arrive" against "delivery and will reach": four tokens, one pass.
TEST(Speculation, ThreeRightDraftsAndTheCorrectionComeFromOnePass) {
  const Text truth = {0, 1, 2, 3, 4, 5, 7};
  ScriptedDrafter drafter(DraftScript::kRight, {0, 1, 2, 3, 4, 6, 7}, 8);
  Dictation target(truth, 2, 8);
  const runtime::Verdict verdict = target.pass(&drafter, 4, false);
  EXPECT_EQ(verdict.committed, 4);
  EXPECT_EQ(verdict.accepted, 3);
  EXPECT_EQ(verdict.tested, 4);
  EXPECT_EQ(target.text(), (Text{0, 1, 2, 3, 4, 5}));
}

TEST(Speculation, NoScriptChangesTheText) {
  std::mt19937_64 random(5);
  Text truth(300);
  for (int32_t& token : truth) token = static_cast<int32_t>(random() % 9);
  for (const DraftScript script :
       {DraftScript::kRight, DraftScript::kWrong, DraftScript::kSometimes, DraftScript::kHostile}) {
    for (int depth = 0; depth <= 8; ++depth) {
      ScriptedDrafter drafter(script, truth, 9, 0.7);
      Dictation target(truth, 3, 9);
      while (target.text().size() < truth.size()) {
        const runtime::Verdict verdict = target.pass(&drafter, depth, depth % 2 == 0);
        ASSERT_GE(verdict.committed, 1);
        ASSERT_LE(verdict.committed, script == DraftScript::kWrong ? 1 : depth + 1);
      }
      EXPECT_EQ(target.text(), truth);
    }
  }
}

}  // namespace
}  // namespace brigade::tests
