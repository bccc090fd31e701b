// Hostile bytes on the draft stream, both ways: what a draft worker says to a coordinator, and what
// a coordinator says to a draft worker. Whatever passes the wire's checks comes back equal when it
// is written again, and is obeyed without a broken invariant: chunks by the tails of three
// sequences, one for each rule, commands by a draft worker's sequences. The first byte chooses the
// direction, and whether epochs, hashes and lengths are made good so that what lies behind their
// checks is reached too.
#include <google/protobuf/stubs/logging.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "kernels/core/check.h"
#include "runtime/draft_worker/draft_sequence.h"
#include "runtime/speculative/draft_tail.h"
#include "runtime/speculative/draft_wire.h"
#include "runtime/speculative/text_hash.h"

using namespace brigade::runtime;  // NOLINT: the file speaks of little else
namespace v1 = brigade::v1;

namespace {

constexpr int kVocab = 32, kContext = 48, kRunAhead = 8, kLawEntries = 6;

template <typename Wire, typename Says>
void check_round_trip(const Says& message) {
  Wire wire, again;
  to_wire(message, &wire);
  const absl::StatusOr<Says> read = from_wire(wire);
  CHECK(read.ok());
  to_wire(*read, &again);
  CHECK(wire.SerializeAsString() == again.SerializeAsString());
}

// The coordinator's end of one sequence, and the text that its tail must agree with.
class Reader {
 public:
  explicit Reader(AcceptRule rule) : rule_(rule), tail_(kLimits, rule, 1, text_) {}

  void take(ChunkMessage chunk, bool make_good, bool agree) {
    tail_.read(kRunAhead, &drafts_);
    if (make_good) {
      chunk.epoch = tail_.epoch();
      chunk.prefix_hash = hash_before(chunk.position);
    }
    absl::Status why;
    const ChunkFate fate = tail_.take(chunk.view(), &why);
    CHECK((fate == ChunkFate::kBad) == !why.ok());
    CHECK((fate != ChunkFate::kBad && fate != ChunkFate::kShutOut) || tail_.shut_out());
    check_drafts();
    if (tail_.committed_length() == kContext) return;
    const bool has_draft = agree && drafts_.size() > 0;
    const int before = tail_.size();
    text_.push_back(has_draft ? drafts_.tokens()[0].token : 3);
    tail_.commit(text_.back());
    CHECK(!has_draft || tail_.size() == before - 1);
  }

 private:
  static constexpr DraftTailLimits kLimits = {.vocab = kVocab,
                                              .max_positions = kContext,
                                              .max_run_ahead = kRunAhead,
                                              .max_law_entries = kLawEntries};
  uint64_t hash_before(int position) const {
    uint64_t hash = kEmptyTextHash;
    const auto length = static_cast<int>(text_.size());
    for (int i = 0; i < std::min(position, length + drafts_.size()); ++i) {
      hash = extend_text_hash(hash, i < length
                                        ? text_[static_cast<size_t>(i)]
                                        : drafts_.tokens()[static_cast<size_t>(i - length)].token);
    }
    return hash;
  }
  void check_drafts() {
    CHECK(tail_.size() <= kRunAhead);
    tail_.read(kRunAhead, &drafts_);
    CHECK(drafts_.size() == tail_.size());
    for (const DraftedToken& draft : drafts_.tokens()) {
      CHECK(draft.token >= 0 && draft.token < kVocab);
      CHECK((draft.form == LawForm::kNone) == (rule_ != AcceptRule::kRejection));
      CHECK(draft.form == LawForm::kNone || draft_probability(draft, draft.token) > 0);
      double sum = 0;
      for (const double probability : draft.law_probabilities) {
        CHECK(probability >= 0);
        sum += probability;
      }
      CHECK(draft.form != LawForm::kSparse || std::abs(sum - 1) < 1e-9);
    }
  }

  const AcceptRule rule_;
  std::vector<int32_t> text_ = {1, 2, 3, 4, 5, 6};
  DraftTail tail_;
  DraftList drafts_{kVocab, kRunAhead, kLawEntries};
};

// A draft worker's engine as far as its sequences go: any guess that the policy allows.
class Sequences {
 public:
  void on(OpenDraft open, bool) {
    const uint64_t id = open.sequence % kMost;
    const AcceptRule rule = open.rule;
    const draft_worker::SequenceLimits limits = {.vocab = kVocab, .max_context = kContext};
    if (!draft_worker::check_open(limits, &open).ok()) return;
    auto sequence = std::make_unique<draft_worker::DraftSequence>(std::move(open), limits, 1);
    CHECK(sequence->rule() == rule);
    guess(*sequence);
    open_[id] = std::move(sequence);
  }
  void on(CommitDraft commit, bool make_good) {
    const auto place = open_.find(commit.sequence % kMost);
    if (place == open_.end()) return;
    draft_worker::DraftSequence& sequence = *place->second;
    if (make_good) commit.base_length = sequence.mirror().committed_length();
    sequence.computed = sequence.length();
    const int before = sequence.length();
    const absl::StatusOr<int> undone = sequence.commit(commit, 2);
    if (!undone.ok()) {
      open_.erase(place);
      return;
    }
    CHECK(*undone >= 0 && *undone <= before && sequence.computed == before - *undone);
    guess(sequence);
  }
  void on(const CloseDraft& close, bool) { open_.erase(close.sequence % kMost); }

 private:
  static constexpr uint64_t kMost = 4;

  void guess(draft_worker::DraftSequence& sequence) {
    std::vector<float> logits(kVocab);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7 % 32) / 4;
    logits[9] = -std::numeric_limits<float>::infinity();
    Distribution full, law;
    std::vector<int32_t> tokens;
    std::vector<float> weights;
    for (size_t turn = 0; sequence.wants_draft(); ++turn) {
      if (!policy_.distribution(logits, sequence.policy_input(), &full)) return;
      const Distribution* from = &full;
      if (sequence.rule() == AcceptRule::kRejection) {
        sparse_weights(full, sequence.law_entries(), &tokens, &weights);
        CHECK(law_from_weights(tokens, weights, kVocab, &law).ok());
        from = &law;
      }
      const int32_t token = from->tokens[turn % from->tokens.size()];
      CHECK(token >= 0 && token < kVocab && token != 9);
      sequence.add_guess(token);
      CHECK(sequence.length() <= kContext);
    }
  }

  Policy policy_{kVocab};
  std::map<uint64_t, std::unique_ptr<draft_worker::DraftSequence>> open_;
};

void worker_says(const std::string& bytes, bool make_good) {
  v1::DraftWorkerMessage wire;
  if (!wire.ParseFromString(bytes)) return;
  const absl::StatusOr<DraftWorkerSays> message = from_wire(wire);
  if (!message.ok()) return CHECK(!message.status().message().empty());
  check_round_trip<v1::DraftWorkerMessage>(*message);
  const auto* chunks = std::get_if<ChunkMessages>(&*message);
  if (chunks == nullptr) return;
  Reader readers[] = {Reader(AcceptRule::kGreedy), Reader(AcceptRule::kCoupled),
                      Reader(AcceptRule::kRejection)};
  for (const ChunkMessage& chunk : chunks->chunks) {
    readers[chunk.sequence % 3].take(chunk, make_good, /*agree=*/chunk.sequence / 3 % 2 == 0);
  }
}

void coordinator_says(const std::string& bytes, bool make_good) {
  v1::DraftCoordinatorMessage wire;
  if (!wire.ParseFromString(bytes)) return;
  const absl::StatusOr<DraftCoordinatorSays> message = from_wire(wire);
  if (!message.ok()) return CHECK(!message.status().message().empty());
  check_round_trip<v1::DraftCoordinatorMessage>(*message);
  const auto* commands = std::get_if<DraftCommands>(&*message);
  if (commands == nullptr) return;
  Sequences sequences;
  for (const DraftCommand& command : commands->commands) {
    std::visit([&](const auto& what) { sequences.on(what, make_good); }, command);
  }
}

}  // namespace

// It would write a line for every text that is not UTF-8.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool make_good = (data[0] & 2) != 0;
  if (data[0] % 2 == 0) {
    worker_says(bytes, make_good);
  } else {
    coordinator_says(bytes, make_good);
  }
  return 0;
}
