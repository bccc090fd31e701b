// The draft worker's engine: what it drafts after which text, for whom it makes room, what it
// refuses.
#include "runtime/draft_worker/draft_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/runtime/draft_worker/draft_engine_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using runtime::AcceptRule;
using runtime::ChunkFate;
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
