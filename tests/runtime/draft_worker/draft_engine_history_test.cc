// Random histories of the draft worker's engine beside the coordinator's own state.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>

#include "runtime/draft_worker/draft_engine.h"
#include "tests/runtime/draft_worker/draft_engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::ChunkFate;
using runtime::NackReason;
using runtime::OpenDraft;

// One sequence of a random history: the coordinator's text, its tail, and the commands that are on
// their way to the worker.
struct Peer {
  OpenDraft open;
  std::vector<int32_t> text;
  std::unique_ptr<runtime::DraftTail> tail;
  std::deque<std::pair<std::vector<int32_t>, int>> commits;  // tokens, wanted
  int wanted = 0;
};

class History {
 public:
  History(uint64_t seed, const BedOptions& options) : bed_(options), random_(seed) {}

  void run(int actions) {
    for (int i = 0; i < actions && !testing::Test::HasFatalFailure(); ++i) act();
    settle();
  }

  DraftEngineBed bed_;
  int64_t survived_ = 0, mismatches_ = 0, reopened_ = 0;

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<uint64_t>(bound)); }

  void act() {
    const int action = below(10);
    if (action == 0) return open();
    if (action < 4) return verdict();
    if (action < 7) return deliver_one();
    if (action == 7 && below(8) == 0) return close();
    ASSERT_TRUE(bed_.engine.step().ok());
    take_chunks();
  }

  void open() {
    const uint64_t id = 1 + static_cast<uint64_t>(below(8));
    if (peers_.contains(id)) return;
    std::vector<int32_t> prompt(static_cast<size_t>(1 + below(30)));
    for (int32_t& token : prompt) token = below(bed_.options.vocab);
    OpenDraft open = greedy_open(id, prompt, below(9));
    open.max_length = open.prompt_length + 1 + below(60);
    random_policy(&open);
    reopen(id, std::move(open), prompt);
  }

  void random_policy(OpenDraft* open) {
    const int rule = below(3);
    if (rule > 0) {
      open->rule = rule == 1 ? AcceptRule::kCoupled : AcceptRule::kRejection;
      open->law_entries = 1 + below(8);
      open->sampling.temperature = 0.7;
      open->sampling.top_k = below(2) * 5;
      open->sampling.seed = random_();
      open->sample_index = below(3);
    }
    if (below(2) == 0) {
      open->sampling.repetition_penalty = 1.3;
      open->sampling.frequency_penalty = 0.5;
    }
    if (below(2) == 0) {
      open->end_tokens = {below(bed_.options.vocab)};
      open->min_tokens = below(6);
    }
  }

  void reopen(uint64_t id, OpenDraft open, const std::vector<int32_t>& text) {
    open.epoch = ++epoch_;
    open.tokens = text;
    const runtime::DraftTailLimits limits{.vocab = bed_.options.vocab,
                                          .max_positions = bed_.options.max_context,
                                          .max_run_ahead = 16,
                                          .max_law_entries = 8};
    Peer& peer = peers_[id];
    peer.tail = std::make_unique<runtime::DraftTail>(limits, open.rule, open.epoch, text);
    peer.wanted = open.wanted;
    peer.open = open;
    peer.text = text;
    peer.commits.clear();
    bed_.open(open);
    take_nacks();
  }

  Peer* any_peer() {
    if (peers_.empty()) return nullptr;
    return &std::next(peers_.begin(), below(static_cast<int>(peers_.size())))->second;
  }

  // The target commits some of the drafts that are there and one token of its own.
  void verdict() {
    Peer* peer = any_peer();
    if (peer == nullptr) return;
    runtime::DraftList drafts(bed_.options.vocab, 16, 8);
    peer->tail->read(below(6), &drafts);
    std::vector<int32_t> tokens;
    for (const auto& draft : drafts.tokens()) {
      if (below(5) == 0) break;
      tokens.push_back(draft.token);
    }
    std::vector<int32_t> text = peer->text;
    text.insert(text.end(), tokens.begin(), tokens.end());
    const auto right = bed_.expected(peer->open, text);
    tokens.push_back(right.has_value() && below(3) > 0 ? *right : below(bed_.options.vocab));
    const auto room = static_cast<size_t>(peer->open.max_length) - peer->text.size();
    if (tokens.size() > room) tokens.resize(room);
    for (const int32_t token : tokens) peer->tail->commit(token);
    peer->text.insert(peer->text.end(), tokens.begin(), tokens.end());
    peer->wanted = below(4) == 0 ? 0 : 1 + below(12);
    peer->commits.push_back({tokens, peer->wanted});
    if (static_cast<int>(peer->text.size()) >= peer->open.max_length) {
      bed_.close(peer->open.sequence);
      peers_.erase(peer->open.sequence);
    }
  }

  void deliver_one() {
    if (Peer* peer = any_peer(); peer != nullptr) deliver(*peer);
  }

  void deliver(Peer& peer) {
    if (peer.commits.empty()) return;
    const uint64_t id = peer.open.sequence;
    const auto [tokens, wanted] = peer.commits.front();
    peer.commits.pop_front();
    bed_.commit(id, tokens, wanted);
    take_nacks();
    if (!peers_.contains(id)) return;
    // What the worker holds as committed is the start of the coordinator's text.
    const WorkerView& view = bed_.views.at(id);
    ASSERT_LE(view.committed, peer.text.size());
    ASSERT_TRUE(std::equal(view.text.begin(),
                           view.text.begin() + static_cast<std::ptrdiff_t>(view.committed),
                           peer.text.begin()));
  }

  void close() {
    Peer* peer = any_peer();
    if (peer == nullptr) return;
    bed_.close(peer->open.sequence);
    peers_.erase(peer->open.sequence);
  }

  void take_chunks() {
    for (const auto& chunk : bed_.chunks) {
      const auto found = peers_.find(chunk.sequence);
      if (found == peers_.end()) continue;
      absl::Status why;
      const ChunkFate fate = found->second.tail->take(chunk.view(), &why);
      ASSERT_NE(fate, ChunkFate::kBad) << why;
      ASSERT_NE(fate, ChunkFate::kShutOut);
      mismatches_ += fate != ChunkFate::kTaken;
    }
    bed_.chunks.clear();
    take_nacks();
  }

  // Full is the only honest reason here; the sequence is opened again.
  void take_nacks() {
    const std::vector<runtime::DraftNack> nacks = std::exchange(bed_.nacks, {});
    for (const auto& nack : nacks) {
      ASSERT_EQ(nack.reason, NackReason::kFull) << nack.detail;
      const auto found = peers_.find(nack.sequence);
      if (found == peers_.end() || found->second.open.epoch != nack.epoch) continue;
      if (below(2) == 0) {
        peers_.erase(found);
        continue;
      }
      ++reopened_;
      const Peer peer = {found->second.open, found->second.text, nullptr, {}, 0};
      peers_.erase(found);
      reopen(nack.sequence, peer.open, peer.text);
    }
  }

  // With every command delivered and the engine at rest, each tail holds all that was asked for.
  void settle() {
    take_chunks();
    while (std::any_of(peers_.begin(), peers_.end(),
                       [](const auto& peer) { return !peer.second.commits.empty(); })) {
      deliver_one();
      take_chunks();
      if (testing::Test::HasFatalFailure()) return;
    }
    for (int i = 0; i < 10000 && bed_.engine.has_work(); ++i) {
      ASSERT_TRUE(bed_.engine.step().ok());
      take_chunks();
    }
    ASSERT_FALSE(bed_.engine.has_work());
    for (const auto& [id, peer] : peers_) {
      const WorkerView& view = bed_.views.at(id);
      ASSERT_EQ(view.committed, peer.text.size());
      const auto guesses = static_cast<int>(view.text.size() - view.committed);
      EXPECT_EQ(peer.tail->size(), guesses);
      const int room = peer.open.max_length - static_cast<int>(peer.text.size());
      const bool ended = guesses > 0 && !peer.open.end_tokens.empty() &&
                         view.text.back() == peer.open.end_tokens[0];
      // More than is wanted only when less is wanted than before.
      if (!ended) {
        EXPECT_GE(guesses, std::min(peer.wanted, room));
      }
      survived_ += peer.tail->counters().run_ahead;
    }
    EXPECT_EQ(bed_.world.problem(), "");
    while (!peers_.empty()) close();
    EXPECT_EQ(bed_.engine.free_blocks(), bed_.options.blocks);
  }

  std::mt19937_64 random_;
  std::map<uint64_t, Peer> peers_;
  uint64_t epoch_ = 0;
};

TEST(DraftEngine, RandomHistories) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("draft_engine_test", seed));
  int64_t survived = 0, mismatches = 0, reopened = 0, refused = 0;
  const int histories = scaled(200, 20);
  for (int i = 0; i < histories && !HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    BedOptions options;
    options.blocks = i % 2 == 0 ? 200 : 40;  // the second kind runs out of KV
    History history(seed * 1000 + static_cast<uint64_t>(i), options);
    history.run(400);
    survived += history.survived_;
    mismatches += history.mismatches_;
    reopened += history.reopened_;
    refused += history.bed_.engine.counters().refused;
  }
  // All of it really happened.
  EXPECT_GT(survived, 0);
  EXPECT_GT(mismatches, 0);
  EXPECT_GT(reopened, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace brigade::tests
