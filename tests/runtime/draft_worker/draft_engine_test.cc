// The draft worker's engine: what it drafts after which text, for whom it makes room, what it
// refuses.
#include "runtime/draft_worker/draft_engine.h"

#include <gtest/gtest.h>

#include "tests/runtime/draft_worker/draft_engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::NackReason;
using runtime::OpenDraft;

std::vector<int32_t> tokens_of(const std::vector<runtime::ChunkMessage>& chunks) {
  std::vector<int32_t> tokens;
  for (const auto& chunk : chunks) tokens.push_back(chunk.tokens[0]);
  return tokens;
}

TEST(DraftEngine, DraftsUpToItsCreditAndGoesOnWhenItWasRight) {
  DraftEngineBed bed({});
  bed.open(greedy_open(1, {1, 2, 3}, 4));
  bed.run();
  ASSERT_EQ(bed.chunks.size(), 4u);
  const std::vector<int32_t> first = tokens_of(bed.chunks);

  // Two of four are committed: the other two stay, two more come, and no row is computed twice.
  const int64_t rows = bed.world.rows;
  bed.commit(1, {first[0], first[1]}, 4);
  bed.run();
  ASSERT_EQ(bed.chunks.size(), 6u);
  EXPECT_EQ(bed.chunks[4].base_length, 5);
  EXPECT_EQ(bed.chunks[4].position, 7);
  EXPECT_EQ(bed.world.rows - rows, 2);
  EXPECT_EQ(bed.engine.counters().undone, 0);
  EXPECT_EQ(bed.world.rows_of_logits, 0);  // a greedy guess is the best token
}

TEST(DraftEngine, CutsItsTextAtTheFirstWrongGuess) {
  DraftEngineBed bed({});
  bed.open(greedy_open(1, {1, 2, 3}, 5));
  bed.run();
  const std::vector<int32_t> guesses = tokens_of(bed.chunks);
  ASSERT_EQ(guesses.size(), 5u);
  const int32_t other = (guesses[1] + 1) % bed.options.vocab;
  const int64_t rows = bed.world.rows;
  bed.commit(1, {guesses[0], other}, 2);
  bed.run();
  ASSERT_EQ(bed.chunks.size(), 7u);
  EXPECT_EQ(bed.chunks[5].position, 5);
  EXPECT_EQ(bed.chunks[5].base_length, 5);
  EXPECT_EQ(bed.engine.counters().undone, 4);
  // The other token's row and the next guess's: what came before is still in the KV.
  EXPECT_EQ(bed.world.rows - rows, 2);
}

TEST(DraftEngine, WantsNothingAtCreditZero) {
  DraftEngineBed bed({});
  bed.open(greedy_open(1, {1, 2, 3}, 0));
  EXPECT_FALSE(bed.engine.has_work());
  bed.commit(1, {4}, 0);
  EXPECT_FALSE(bed.engine.has_work());
  bed.commit(1, {5}, 1);
  bed.run();
  EXPECT_EQ(bed.chunks.size(), 1u);
}

TEST(DraftEngine, DraftsNothingAfterAnEndOrBeyondTheLength) {
  DraftEngineBed bed({});
  OpenDraft open = greedy_open(1, {1, 2, 3}, 20);
  open.max_length = 8;
  bed.open(open);
  bed.run();
  EXPECT_EQ(bed.chunks.size(), 5u);

  // The third guess becomes the end; below min_tokens it cannot be one.
  const int32_t end = bed.chunks[2].tokens[0];
  const std::vector<int32_t> guesses = tokens_of(bed.chunks);
  const auto first = std::find(guesses.begin(), guesses.end(), end) - guesses.begin();
  open.end_tokens = {end};
  open.sequence = open.epoch = 2;
  bed.chunks.clear();
  bed.open(open);
  bed.run();
  EXPECT_EQ(static_cast<std::ptrdiff_t>(bed.chunks.size()), first + 1);
  // A commit against the end takes it back.
  bed.commit(2, {(guesses[0] + 1) % bed.options.vocab}, 20);
  bed.chunks.clear();
  bed.run();
  EXPECT_GE(bed.chunks.size(), 1u);

  open.min_tokens = 5;
  open.sequence = open.epoch = 3;
  bed.chunks.clear();
  bed.open(open);
  bed.run();
  ASSERT_EQ(bed.chunks.size(), 5u);
  for (const int32_t token : tokens_of(bed.chunks)) EXPECT_NE(token, end);
}

TEST(DraftEngine, RefusesWhatDoesNotHoldTogetherAndServesTheRest) {
  DraftEngineBed bed({});
  bed.open(greedy_open(1, {1, 2, 3}, 2));
  struct Case {
    const char* field;
    void (*spoil)(OpenDraft*);
  };
  const Case cases[] = {
      {"tokens", [](OpenDraft* open) { open->tokens[1] = 24; }},
      {"tokens", [](OpenDraft* open) { open->tokens[1] = -1; }},
      {"tokens", [](OpenDraft* open) { open->tokens.resize(96, 1); }},
      {"tokens", [](OpenDraft* open) { open->tokens.clear(); }},
      {"prompt_length", [](OpenDraft* open) { open->prompt_length = 4; }},
      {"prompt_length", [](OpenDraft* open) { open->prompt_length = 0; }},
      {"wanted", [](OpenDraft* open) { open->wanted = 257; }},
      {"wanted", [](OpenDraft* open) { open->wanted = -1; }},
      {"law_entries", [](OpenDraft* open) { open->rule = AcceptRule::kRejection; }},
      {"temperature", [](OpenDraft* open) { open->sampling.temperature = -1; }},
      {"top_p", [](OpenDraft* open) { open->sampling.top_p = 0; }},
      {"allowed_tokens", [](OpenDraft* open) { open->sampling.allowed_tokens = {99}; }},
  };
  uint64_t id = 10;
  for (const Case& one : cases) {
    OpenDraft open = greedy_open(++id, {1, 2, 3}, 2);
    one.spoil(&open);
    bed.engine.take(open);
    ASSERT_EQ(bed.nacks.size(), id - 10);
    EXPECT_EQ(bed.nacks.back().sequence, id);
    EXPECT_EQ(bed.nacks.back().reason, NackReason::kRefused);
    EXPECT_NE(bed.nacks.back().detail.find(one.field), std::string::npos)
        << bed.nacks.back().detail;
  }
  bed.nacks.clear();
  bed.run();
  EXPECT_EQ(bed.chunks.size(), 2u);
  EXPECT_EQ(bed.engine.open_sequences(), 1);

  // A commit that does not continue the text closes the sequence; later ones for it are dropped.
  bed.engine.take(runtime::CommitDraft{.sequence = 1, .epoch = 1, .base_length = 4, .tokens = {1}});
  ASSERT_EQ(bed.nacks.size(), 1u);
  EXPECT_EQ(bed.nacks[0].reason, NackReason::kOutOfStep);
  bed.engine.take(runtime::CommitDraft{.sequence = 1, .epoch = 1, .base_length = 5, .tokens = {1}});
  EXPECT_EQ(bed.nacks.size(), 1u);
  EXPECT_EQ(bed.engine.open_sequences(), 0);
  EXPECT_EQ(bed.engine.free_blocks(), bed.options.blocks);
}

TEST(DraftEngine, AnOldEpochIsNotHeard) {
  DraftEngineBed bed({});
  bed.open(greedy_open(1, {1, 2, 3}, 1));
  OpenDraft again = greedy_open(1, {1, 2, 3, 4}, 1);
  again.epoch = 9;
  bed.open(again);
  bed.engine.take(runtime::CommitDraft{.sequence = 1, .epoch = 1, .base_length = 3, .tokens = {7}});
  bed.engine.take(runtime::CloseDraft{.sequence = 1, .epoch = 1});
  bed.run();
  ASSERT_EQ(bed.chunks.size(), 1u);
  EXPECT_EQ(bed.chunks[0].epoch, 9u);
  EXPECT_EQ(bed.chunks[0].position, 4);
}

TEST(DraftEngine, TheSequenceIdleLongestMakesRoom) {
  BedOptions options;
  options.blocks = 6;  // of 4 positions
  DraftEngineBed bed(options);
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6};
  for (uint64_t id = 1; id <= 3; ++id) bed.open(greedy_open(id, prompt, 1));
  bed.run();
  EXPECT_EQ(bed.engine.free_blocks(), 0);
  bed.commit(1, {7}, 1);  // 2 is now the one that waits longest
  bed.run();
  EXPECT_TRUE(bed.nacks.empty());
  bed.open(greedy_open(4, prompt, 1));
  bed.run();
  ASSERT_EQ(bed.nacks.size(), 1u);
  EXPECT_EQ(bed.nacks[0].sequence, 2u);
  EXPECT_EQ(bed.nacks[0].reason, NackReason::kFull);

  // When all others have work, whoever asks gets nothing.
  bed.nacks.clear();
  bed.commit(1, {8, 9, 10}, 8);
  bed.commit(3, {8, 9, 10}, 8);
  bed.commit(4, {8, 9, 10}, 8);
  bed.run();
  EXPECT_FALSE(bed.nacks.empty());
  EXPECT_GE(bed.engine.open_sequences(), 1);
  bed.engine.clear();
  EXPECT_EQ(bed.engine.free_blocks(), options.blocks);
}

TEST(DraftEngine, RefusesMoreSequencesThanItHolds) {
  DraftEngineBed bed({});
  for (uint64_t id = 1; id <= 7; ++id) bed.open(greedy_open(id, {1, 2}, 1));
  ASSERT_EQ(bed.nacks.size(), 1u);
  EXPECT_EQ(bed.nacks[0].sequence, 7u);
  EXPECT_EQ(bed.nacks[0].reason, NackReason::kFull);
}

TEST(DraftEngine, NothingIsDraftedFromLogitsThatAreNoNumbers) {
  DraftEngineBed bed({});
  bed.world.nan_token = 9;
  bed.open(greedy_open(1, {1, 9, 3}, 3));
  bed.open(greedy_open(2, {1, 2, 3}, 3));
  bed.world.waits = 2;
  ASSERT_TRUE(bed.engine.step().ok());
  ASSERT_EQ(bed.nacks.size(), 1u);
  EXPECT_EQ(bed.nacks[0].sequence, 1u);
  EXPECT_EQ(bed.engine.open_sequences(), 1);
}

}  // namespace
}  // namespace brigade::tests
