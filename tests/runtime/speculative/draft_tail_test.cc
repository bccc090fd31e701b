// The coordinator's and the worker's view of one sequence's drafts: single cases by name, then
// random histories of a worker that runs ahead over a slow stream, with what it really drafted as
// the model, and floods of chunks that no honest worker sends.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/draft_mirror.h"
#include "runtime/speculative/draft_tail.h"
#include "runtime/speculative/text_hash.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::ChunkFate;
using runtime::DraftChunk;
using runtime::DraftMirror;
using runtime::DraftTail;
using runtime::LawForm;
using Text = std::vector<int32_t>;

uint64_t hash_of(const Text& text) {
  uint64_t hash = runtime::kEmptyTextHash;
  for (const int32_t token : text) hash = runtime::extend_text_hash(hash, token);
  return hash;
}

Text tail_of(const DraftTail& tail) {
  runtime::DraftList drafts(1000, 64, 8);
  tail.read(tail.size(), &drafts);
  Text tokens;
  for (const auto& draft : drafts.tokens()) tokens.push_back(draft.token);
  return tokens;
}

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

struct SentChunk {
  uint64_t epoch;
  int base_length;
  uint64_t prefix_hash;
  int position;
  Text tokens;
};
struct SentCommit {
  uint64_t epoch;
  int base_length;
  Text tokens;
};

// A coordinator's sequence and its draft worker with messages on the way in between.
class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed),
        right_(std::uniform_real_distribution<>(0.2, 1)(random_)),
        text_{1, 2},
        tail_(limits(), AcceptRule::kGreedy, 1, text_) {
    open_worker();
  }

  void step(bool calm = false) {
    switch (pick(calm ? 4 : 6)) {
      case 0:
        worker_drafts();
        break;
      case 1:
        worker_hears();
        break;
      case 2:
        coordinator_hears();
        break;
      case 3:
        coordinator_commits();
        break;
      case 4:
        replay();
        break;
      default:
        if (pick(20) == 0) reset_stream();
    }
    check();
  }
  // Everything that is on the way arrives and the worker drafts all it may.
  void settle() {
    while (!commits_.empty()) worker_hears();
    while (mirror_->room() > 0) worker_drafts();
    while (!chunks_.empty()) coordinator_hears();
    check();
  }
  const DraftTail& tail() const { return tail_; }
  static runtime::DraftTailLimits limits() {
    return {.vocab = 50, .max_positions = 4000, .max_run_ahead = 7};
  }
  bool full() const { return text_.size() > 3000; }

 private:
  int pick(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  // What follows a text: the target's token, and the draft's, which is often the same.
  int32_t target_token(const Text& text) const {
    return static_cast<int32_t>(hash_of(text) * 31 % 50);
  }
  void open_worker() {
    mirror_ = std::make_unique<DraftMirror>(text_, 4000, limits().max_run_ahead);
    sent_ = static_cast<int>(text_.size());
  }
  void worker_drafts() {
    const int position = sent_;
    Text tokens;
    for (int wanted = 1 + pick(3); wanted > 0 && mirror_->room() > 0; --wanted) {
      const Text before(mirror_->text().begin(), mirror_->text().end());
      int32_t token = target_token(before);
      if (std::uniform_real_distribution<>(0, 1)(random_) >= right_) token = pick(50);
      drafted_[before].push_back(token);
      mirror_->add_guess(token);
      tokens.push_back(token);
    }
    if (tokens.empty()) return;
    chunks_.push_back(
        {epoch_, mirror_->committed_length(), mirror_->hash_before(position), position, tokens});
    sent_ = position + static_cast<int>(tokens.size());
    old_chunks_.push_back(chunks_.back());
  }
  void worker_hears() {
    if (commits_.empty()) return;
    const SentCommit commit = commits_.front();
    commits_.pop_front();
    DraftMirror::Commit result;
    ASSERT_TRUE(mirror_->commit(commit.base_length, commit.tokens, &result).ok());
    const Text known(mirror_->text().begin(),
                     mirror_->text().begin() + mirror_->committed_length());
    ASSERT_TRUE(std::equal(known.begin(), known.end(), text_.begin()));  // a prefix of the text
    sent_ = std::max(std::min(sent_, result.kept), mirror_->committed_length());
    if (result.survived && mirror_->guesses() > 0) sent_ = static_cast<int>(mirror_->text().size());
  }
  void coordinator_hears() {
    if (chunks_.empty()) return;
    deliver(chunks_.front());
    chunks_.pop_front();
  }
  ChunkFate deliver(const SentChunk& chunk) {
    absl::Status why;
    const ChunkFate fate = tail_.take({.epoch = chunk.epoch,
                                       .base_length = chunk.base_length,
                                       .prefix_hash = chunk.prefix_hash,
                                       .position = chunk.position,
                                       .tokens = chunk.tokens},
                                      &why);
    EXPECT_NE(fate, ChunkFate::kBad) << why;
    return fate;
  }
  // Chunks of before, sent once more.
  void replay() {
    if (!old_chunks_.empty()) deliver(old_chunks_[random_() % old_chunks_.size()]);
  }
  void coordinator_commits() {
    SentCommit commit{epoch_, static_cast<int>(text_.size()), {}};
    for (int count = 1 + pick(4); count > 0; --count) {
      const int32_t token = target_token(text_);
      text_.push_back(token);
      tail_.commit(token);
      commit.tokens.push_back(token);
    }
    commits_.push_back(commit);
  }
  void reset_stream() {
    chunks_.clear();
    commits_.clear();
    tail_.reopen(++epoch_);
    open_worker();
  }
  // Each token of the tail was drafted by the worker from exactly the text before it.
  void check() {
    ASSERT_LE(tail_.size(), limits().max_run_ahead);
    ASSERT_EQ(tail_.committed_length(), static_cast<int>(text_.size()));
    Text before = text_;
    for (const int32_t token : tail_of(tail_)) {
      const auto made = drafted_.find(before);
      ASSERT_TRUE(made != drafted_.end());
      ASSERT_TRUE(std::find(made->second.begin(), made->second.end(), token) != made->second.end());
      before.push_back(token);
    }
  }

  std::mt19937_64 random_;
  const double right_;
  uint64_t epoch_ = 1;
  Text text_;  // committed
  DraftTail tail_;
  std::unique_ptr<DraftMirror> mirror_;
  int sent_ = 0;  // the worker's text up to here is on its way
  std::map<Text, Text> drafted_;
  std::deque<SentChunk> chunks_;
  std::vector<SentChunk> old_chunks_;
  std::deque<SentCommit> commits_;
};

TEST(TailHistory, OnlyWhatWasDraftedFromTheCommittedTextAndAllOfItInTheEnd) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("draft_tail_test", seed));
  int64_t run_ahead = 0;
  for (int round = 0; round < scaled(200, 20); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    History history(seed * 1000 + static_cast<uint64_t>(round));
    for (int step = 0; step < 150 && !history.full(); ++step) {
      history.step(round % 3 == 0);
      if (testing::Test::HasFatalFailure()) return;
      if (step % 40 != 39) continue;
      history.settle();
      if (testing::Test::HasFatalFailure()) return;
      ASSERT_EQ(history.tail().size(), History::limits().max_run_ahead);
    }
    run_ahead += history.tail().counters().run_ahead;
  }
  EXPECT_GT(run_ahead, 100);
}

TEST(TailHistory, GarbageShutsOutOneSequenceAndHarmsNoOther) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("draft_tail_test", seed));
  std::mt19937_64 random(seed);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int shut_out = 0;
  for (int round = 0; round < scaled(3000, 300); ++round) {
    const bool laws = round % 2 == 0;
    DraftTail tail({.vocab = 10, .max_positions = 64, .max_run_ahead = 5, .max_law_entries = 3},
                   laws ? AcceptRule::kRejection : AcceptRule::kGreedy, 3, Text{1, 2, 3});
    Text committed = {1, 2, 3};
    for (int message = 0; message < 10; ++message) {
      Text tokens, sizes, law_tokens;
      std::vector<float> weights;
      for (int i = pick(0, 6); i > 0; --i) {
        tokens.push_back(pick(0, 30) == 0 ? pick(-100, 100) : pick(0, 9));
      }
      for (size_t i = 0; i < tokens.size() + (pick(0, 20) == 0); ++i) {
        sizes.push_back(pick(0, 20) == 0 ? pick(-5, 2000000000) : 1);
        law_tokens.push_back(i < tokens.size() ? tokens[i] : 3);
        weights.push_back(pick(0, 20) == 0 ? -1.0f : 1.0f);
      }
      const int base = static_cast<int>(committed.size()) + (pick(0, 10) == 0 ? pick(-9, 9) : 0);
      const bool honest_hash = pick(0, 10) != 0;
      absl::Status why;
      tail.take({.epoch = static_cast<uint64_t>(pick(0, 30) == 0 ? pick(0, 9) : 3),
                 .base_length = base,
                 .prefix_hash = honest_hash ? hash_of(committed) : random(),
                 .position = pick(0, 10) == 0 ? pick(-2000000000, 2000000000) : base + pick(0, 1),
                 .tokens = tokens,
                 .form = laws ? (pick(0, 9) == 0 ? LawForm::kPointMass : LawForm::kSparse)
                              : LawForm::kNone,
                 .law_sizes = laws ? sizes : Text(),
                 .law_tokens = laws ? law_tokens : Text(),
                 .law_weights = laws ? weights : std::vector<float>()},
                &why);
      ASSERT_LE(tail.size(), 5);
      runtime::DraftList drafts(10, 5, 3);
      tail.read(5, &drafts);
      ASSERT_EQ(drafts.size(), tail.size());
      if (pick(0, 2) == 0) {
        committed.push_back(pick(0, 9));
        tail.commit(committed.back());
      }
    }
    shut_out += tail.shut_out();
  }
  EXPECT_GT(shut_out, 0);
}

}  // namespace
}  // namespace brigade::tests
