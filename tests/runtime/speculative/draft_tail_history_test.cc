// Random histories of a draft worker that runs ahead over a slow stream, with what it really
// drafted as the model, and floods of chunks that no honest worker sends.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/speculative/draft_mirror.h"
#include "runtime/speculative/draft_tail.h"
#include "tests/runtime/speculative/tail_text.h"
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
  EXPECT_GT(run_ahead, 0);  // how many depends on the histories
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
