// The coordinator's and the worker's view of one sequence's drafts, case by case.
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/draft_mirror.h"
#include "runtime/speculative/draft_tail.h"
#include "tests/runtime/speculative/tail_text.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::ChunkFate;
using runtime::DraftChunk;
using runtime::DraftMade;
using runtime::DraftMirror;
using runtime::DraftTail;
using runtime::LawForm;
using Text = std::vector<int32_t>;

// A greedy sequence whose committed text is {1, 2, 3}, run-ahead 6, vocabulary 10.
class Tail : public testing::Test {
 protected:
  // Tokens after `before`, made by a worker that knew of `base_length` committed tokens.
  ChunkFate take(const Text& before, const Text& tokens, int base_length, uint64_t epoch = 5) {
    return tail_.take({.epoch = epoch,
                       .base_length = base_length,
                       .prefix_hash = hash_of(before),
                       .position = static_cast<int>(before.size()),
                       .tokens = tokens},
                      &why_);
  }
  DraftTail tail_{{.vocab = 10, .max_positions = 50, .max_run_ahead = 6},
                  AcceptRule::kGreedy,
                  5,
                  Text{1, 2, 3}};
  absl::Status why_;
};

TEST_F(Tail, ChunksFollowOneAnother) {
  EXPECT_EQ(take({1, 2, 3}, {4, 5}, 3), ChunkFate::kTaken);
  EXPECT_EQ(take({1, 2, 3, 4, 5}, {6}, 3), ChunkFate::kTaken);
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6, 7}, {8}, 3), ChunkFate::kGap);
  EXPECT_EQ(tail_of(tail_), (Text{4, 5, 6}));
  // Sent twice: nothing new.
  EXPECT_EQ(take({1, 2, 3}, {4, 5}, 3), ChunkFate::kTaken);
  EXPECT_EQ(tail_of(tail_), (Text{4, 5, 6}));
}

TEST_F(Tail, AFullMatchKeepsTheRunAheadChain) {
  take({1, 2, 3}, {4, 5, 6}, 3);
  tail_.commit(4);
  tail_.commit(5);
  EXPECT_EQ(tail_of(tail_), (Text{6}));
  // Still made with 3 known tokens, and it goes on from the right text.
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6}, {7}, 3), ChunkFate::kTaken);
  EXPECT_EQ(tail_of(tail_), (Text{6, 7}));
  // 6 was there before the pass that committed 5; 7 came later, but its maker knew nothing of it.
  EXPECT_EQ(tail_.made(0), DraftMade::kBeforeVerdict);
  EXPECT_EQ(tail_.made(1), DraftMade::kUnaware);
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6, 7}, {8}, 5), ChunkFate::kTaken);
  EXPECT_EQ(tail_.made(2), DraftMade::kAfterVerdict);
  tail_.commit(6);
  EXPECT_EQ(tail_.counters().matched, 3);
  EXPECT_EQ(tail_.counters().run_ahead, 2);  // 4 was drafted when all before it was known
}

TEST_F(Tail, AMismatchEndsTheChainUntilTheWorkerKnows) {
  take({1, 2, 3}, {4, 5, 6}, 3);
  tail_.commit(4);
  tail_.commit(9);
  EXPECT_EQ(tail_.size(), 0);
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6}, {7}, 3), ChunkFate::kOldBase);
  EXPECT_EQ(take({1, 2, 3, 4, 9}, {7}, 5), ChunkFate::kTaken);
  EXPECT_EQ(tail_of(tail_), (Text{7}));
}

TEST_F(Tail, LateDraftsAreComparedWithWhatWasCommittedMeanwhile) {
  for (const int32_t token : {4, 5, 6}) tail_.commit(token);
  EXPECT_EQ(take({1, 2, 3}, {4, 5, 6, 7}, 3), ChunkFate::kTaken);
  EXPECT_EQ(tail_of(tail_), (Text{7}));
  for (const int32_t token : {7, 8, 8}) tail_.commit(token);
  const Text seven = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(take(seven, {8, 7, 1}, 7), ChunkFate::kDiverged);
  // That chain stays wrong; one made with the ninth token known does not.
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6, 7, 8}, {8}, 8), ChunkFate::kOldBase);
  EXPECT_EQ(take({1, 2, 3, 4, 5, 6, 7, 8, 8}, {2}, 9), ChunkFate::kTaken);
  EXPECT_EQ(tail_of(tail_), (Text{2}));
}

TEST_F(Tail, AnotherTextIsDropped) {
  take({1, 2, 3}, {4, 5}, 3);
  EXPECT_EQ(take({1, 2, 3, 4, 6}, {7}, 3), ChunkFate::kDiverged);
  EXPECT_EQ(take({1, 2, 3, 4}, {6, 7}, 3), ChunkFate::kDiverged);
  EXPECT_EQ(tail_of(tail_), (Text{4, 5}));
}

TEST_F(Tail, OldEpochsAreDroppedAndReopeningStartsAnew) {
  EXPECT_EQ(take({1, 2, 3}, {4}, 3, 4), ChunkFate::kOldEpoch);
  take({1, 2, 3}, {4}, 3);
  tail_.reopen(6);
  EXPECT_EQ(tail_.size(), 0);
  EXPECT_EQ(take({1, 2, 3}, {4}, 3, 5), ChunkFate::kOldEpoch);
  EXPECT_EQ(take({1, 2, 3}, {4}, 3, 6), ChunkFate::kTaken);
}

TEST_F(Tail, BadMessagesShutTheSequenceOut) {
  const auto refused = [&](const Text& before, const Text& tokens, int base, uint64_t epoch = 5) {
    DraftTail copy = tail_;
    absl::Status why;
    const ChunkFate fate = copy.take({.epoch = epoch,
                                      .base_length = base,
                                      .prefix_hash = hash_of(before),
                                      .position = static_cast<int>(before.size()),
                                      .tokens = tokens},
                                     &why);
    EXPECT_EQ(fate, ChunkFate::kBad);
    EXPECT_TRUE(copy.shut_out());
    EXPECT_EQ(copy.size(), 0);
    return std::string(why.message());
  };
  take({1, 2, 3}, {4, 5}, 3);
  EXPECT_EQ(refused({1, 2, 3}, {4}, 3, 6), "epoch: 6 has not begun, this is 5");
  EXPECT_EQ(refused({1, 2, 3, 4}, {5}, 4), "base_length: 4, but 3 tokens are committed");
  EXPECT_EQ(refused({1, 2, 3}, {4}, -1), "base_length: -1, but 3 tokens are committed");
  EXPECT_EQ(refused({1, 2, 3}, {}, 3), "position: 0 tokens at 3 after 3, at most 6 may run ahead");
  EXPECT_EQ(refused({1, 2}, {3}, 3), "position: 1 tokens at 2 after 3, at most 6 may run ahead");
  EXPECT_EQ(refused({1, 2, 3, 4, 5}, {4, 4, 4, 4, 4}, 3),
            "position: 5 tokens at 5 after 3, at most 6 may run ahead");
  EXPECT_EQ(refused({1, 2, 4}, {4}, 3), "prefix_hash: not that of the 3 committed tokens");
  EXPECT_EQ(refused({1, 2, 3}, {10}, 3), "tokens: 10 is outside the vocabulary of 10");
  EXPECT_EQ(refused({1, 2, 3}, {-1}, 3), "tokens: -1 is outside the vocabulary of 10");
  // Shut out until it is opened again.
  take({1, 2, 3}, {99}, 3);
  EXPECT_EQ(take({1, 2, 3}, {4}, 3), ChunkFate::kShutOut);
  tail_.commit(4);
  tail_.reopen(7);
  EXPECT_EQ(take({1, 2, 3, 4}, {5}, 4, 7), ChunkFate::kTaken);
}

TEST(TailLaws, SparseLawsTravelWithTheirTokens) {
  DraftTail tail({.vocab = 10, .max_positions = 50, .max_run_ahead = 6, .max_law_entries = 3},
                 AcceptRule::kRejection, 1, Text{1});
  const Text sizes = {2, 1}, tokens = {4, 5};
  Text law_tokens = {2, 4, 5};
  std::vector<float> weights = {1, 3, 2};
  DraftChunk chunk{.epoch = 1,
                   .base_length = 1,
                   .prefix_hash = hash_of({1}),
                   .position = 1,
                   .tokens = tokens,
                   .form = LawForm::kSparse,
                   .law_sizes = sizes,
                   .law_tokens = law_tokens,
                   .law_weights = weights};
  const auto fate = [&](const DraftChunk& changed) {
    DraftTail copy = tail;
    absl::Status why;
    return copy.take(changed, &why);
  };
  EXPECT_EQ(fate(chunk), ChunkFate::kTaken);
  DraftChunk bad = chunk;
  bad.form = LawForm::kNone;
  EXPECT_EQ(fate(bad), ChunkFate::kBad);
  bad.form = LawForm::kPointMass;  // with lists
  EXPECT_EQ(fate(bad), ChunkFate::kBad);
  bad = chunk;
  bad.law_sizes = std::span(sizes).first(1);
  EXPECT_EQ(fate(bad), ChunkFate::kBad);
  for (const Text& wrong_sizes : {Text{4, 1}, Text{2, 2}, Text{1, 1}, Text{0, 3}, Text{-1, 3}}) {
    bad = chunk;
    bad.law_sizes = wrong_sizes;
    EXPECT_EQ(fate(bad), ChunkFate::kBad);
  }
  weights[1] = 0;  // token 4 could not have been drawn
  EXPECT_EQ(fate(chunk), ChunkFate::kBad);
  weights[1] = 3;
  absl::Status why;
  ASSERT_EQ(tail.take(chunk, &why), ChunkFate::kTaken);
  runtime::DraftList drafts(10, 6, 3);
  tail.read(6, &drafts);
  ASSERT_EQ(drafts.size(), 2);
  EXPECT_EQ(runtime::draft_probability(drafts.tokens()[0], 4), 0.75);
  EXPECT_EQ(runtime::draft_probability(drafts.tokens()[0], 2), 0.25);
  EXPECT_EQ(runtime::draft_probability(drafts.tokens()[1], 5), 1.0);
  tail.commit(4);
  tail.read(6, &drafts);
  EXPECT_EQ(drafts.size(), 1);
}

TEST(Mirror, KeepsGuessesThatWereRightAndCutsAtTheFirstWrongOne) {
  DraftMirror mirror(Text{1, 2}, 10, 4);
  for (const int32_t token : {3, 4, 5, 6}) mirror.add_guess(token);
  EXPECT_EQ(mirror.room(), 0);
  DraftMirror::Commit commit;
  ASSERT_TRUE(mirror.commit(2, Text{3, 4}, &commit).ok());
  EXPECT_TRUE(commit.survived);
  EXPECT_EQ(commit.kept, 6);
  EXPECT_EQ(mirror.room(), 2);
  ASSERT_TRUE(mirror.commit(4, Text{5, 9, 8}, &commit).ok());
  EXPECT_FALSE(commit.survived);
  EXPECT_EQ(commit.kept, 5);
  EXPECT_EQ(Text(mirror.text().begin(), mirror.text().end()), (Text{1, 2, 3, 4, 5, 9, 8}));
  EXPECT_EQ(mirror.hash_before(7), hash_of({1, 2, 3, 4, 5, 9, 8}));
  // Behind the worker: all guesses right, and more.
  mirror.add_guess(1);
  ASSERT_TRUE(mirror.commit(7, Text{1, 2}, &commit).ok());
  EXPECT_TRUE(commit.survived);
  EXPECT_EQ(commit.kept, 8);
  EXPECT_EQ(mirror.room(), 1);  // positions, not run-ahead
  EXPECT_EQ(mirror.commit(7, Text{1}, &commit).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(mirror.commit(9, Text{1, 2}, &commit).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(mirror.committed_length(), 9);
}

}  // namespace
}  // namespace brigade::tests
