#include "runtime/speculative/draft_tail.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "runtime/speculative/text_hash.h"

namespace brigade::runtime {

DraftTail::DraftTail(const DraftTailLimits& limits, AcceptRule rule, uint64_t epoch,
                     std::span<const int32_t> text)
    : limits_(limits),
      rule_(rule),
      epoch_(epoch),
      ring_(static_cast<size_t>(limits.max_run_ahead)) {
  CHECK(limits.max_run_ahead > 0);
  hashes_.reserve(static_cast<size_t>(std::max(limits.max_positions, 0)) + 1);
  hashes_.push_back(kEmptyTextHash);
  for (const int32_t token : text) hashes_.push_back(extend_text_hash(hashes_.back(), token));
  if (rule != AcceptRule::kRejection) return;
  const auto entries = static_cast<size_t>(limits.max_law_entries);
  law_.tokens.reserve(entries);
  law_.probabilities.reserve(entries);
  for (Held& place : ring_) {
    place.law.tokens.reserve(entries);
    place.law.probabilities.reserve(entries);
  }
}

ChunkFate DraftTail::take(const DraftChunk& chunk, absl::Status* why) {
  const ChunkFate fate = fate_of(chunk, why);
  if (fate == ChunkFate::kBad) {
    shut_out_ = true;
    count_ = 0;
  }
  if (fate != ChunkFate::kTaken) counters_.dropped += static_cast<int64_t>(chunk.tokens.size());
  return fate;
}

ChunkFate DraftTail::fate_of(const DraftChunk& chunk, absl::Status* why) {
  if (chunk.epoch < epoch_) return ChunkFate::kOldEpoch;
  if (shut_out_) return ChunkFate::kShutOut;
  *why = check_place(chunk);
  if (why->ok()) *why = check_tokens(chunk);
  if (!why->ok()) return ChunkFate::kBad;
  if (chunk.base_length < min_base_) return ChunkFate::kOldBase;
  return join(chunk);
}

absl::Status DraftTail::check_place(const DraftChunk& chunk) const {
  if (chunk.epoch > epoch_) {
    return absl::InvalidArgumentError(
        absl::StrCat("epoch: ", chunk.epoch, " has not begun, this is ", epoch_));
  }
  if (chunk.base_length < 0 || chunk.base_length > committed_length()) {
    return absl::InvalidArgumentError(absl::StrCat("base_length: ", chunk.base_length, ", but ",
                                                   committed_length(), " tokens are committed"));
  }
  const int most = std::min(limits_.max_run_ahead, static_cast<int>(ring_.size()));
  const int64_t ahead = int64_t{chunk.position} - chunk.base_length;
  const auto count = static_cast<int64_t>(chunk.tokens.size());
  if (ahead < 0 || count == 0 || count > most || ahead + count > most) {
    return absl::InvalidArgumentError(absl::StrCat("position: ", count, " tokens at ",
                                                   chunk.position, " after ", chunk.base_length,
                                                   ", at most ", most, " may run ahead"));
  }
  if (chunk.position == chunk.base_length &&
      chunk.prefix_hash != hashes_[static_cast<size_t>(chunk.base_length)]) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefix_hash: not that of the ", chunk.base_length, " committed tokens"));
  }
  return absl::OkStatus();
}

absl::Status DraftTail::check_tokens(const DraftChunk& chunk) {
  for (const int32_t token : chunk.tokens) {
    if (token >= 0 && token < limits_.vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: ", token, " is outside the vocabulary of ", limits_.vocab));
  }
  const bool law_wanted = rule_ == AcceptRule::kRejection;
  if (law_wanted != (chunk.form != LawForm::kNone)) {
    return absl::InvalidArgumentError(law_wanted ? "law: missing" : "law: none was asked for");
  }
  if (chunk.form == LawForm::kSparse) return check_laws(chunk);
  if (!chunk.law_sizes.empty() || !chunk.law_tokens.empty() || !chunk.law_weights.empty()) {
    return absl::InvalidArgumentError("law: a list, but the form has none");
  }
  return absl::OkStatus();
}

absl::Status DraftTail::check_laws(const DraftChunk& chunk) {
  if (chunk.law_sizes.size() != chunk.tokens.size() ||
      chunk.law_tokens.size() != chunk.law_weights.size()) {
    return absl::InvalidArgumentError("law: the lists differ in length");
  }
  size_t first = 0;
  for (size_t i = 0; i < chunk.tokens.size(); ++i) {
    const int32_t size = chunk.law_sizes[i];
    if (size < 1 || size > limits_.max_law_entries ||
        static_cast<size_t>(size) > chunk.law_tokens.size() - first) {
      return absl::InvalidArgumentError(
          absl::StrCat("law: ", size, " entries, at most ", limits_.max_law_entries));
    }
    const auto entries = static_cast<size_t>(size);
    const absl::Status law =
        law_from_weights(chunk.law_tokens.subspan(first, entries),
                         chunk.law_weights.subspan(first, entries), limits_.vocab, &law_);
    if (!law.ok()) return law;
    if (!(probability_in(law_.tokens, law_.probabilities, chunk.tokens[i]) > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("law: token ", chunk.tokens[i], " cannot have been drawn from its own"));
    }
    first += entries;
  }
  if (first != chunk.law_tokens.size()) {
    return absl::InvalidArgumentError("law: entries that belong to no token");
  }
  return absl::OkStatus();
}

// Of the text before `position`, at most the tail's end.
uint64_t DraftTail::hash_before(int position) const {
  const int ahead = position - committed_length();
  return ahead <= 0 ? hashes_[static_cast<size_t>(position)] : held(ahead - 1).hash;
}

ChunkFate DraftTail::join(const DraftChunk& chunk) {
  const int known = committed_length() + count_;
  if (chunk.position > known) return ChunkFate::kGap;
  uint64_t hash = chunk.prefix_hash;
  if (hash != hash_before(chunk.position)) return ChunkFate::kDiverged;
  size_t law_first = 0;
  for (size_t i = 0; i < chunk.tokens.size(); ++i) {
    hash = extend_text_hash(hash, chunk.tokens[i]);
    const int position = chunk.position + static_cast<int>(i);
    if (position < known && hash != hash_before(position + 1)) {
      // A draft that lost to a committed token: so does all that the worker makes until it knows.
      if (position < committed_length()) min_base_ = std::max(min_base_, position + 1);
      return ChunkFate::kDiverged;
    }
    if (position >= known) append(chunk, i, law_first, hash);
    if (chunk.form == LawForm::kSparse) law_first += static_cast<size_t>(chunk.law_sizes[i]);
  }
  return ChunkFate::kTaken;
}

void DraftTail::append(const DraftChunk& chunk, size_t index, size_t law_first, uint64_t hash) {
  CHECK(count_ < static_cast<int>(ring_.size()));
  Held& place = held(count_++);
  place.token = chunk.tokens[index];
  place.base_length = chunk.base_length;
  place.arrived_length = committed_length();
  place.hash = hash;
  place.form = chunk.form;
  if (chunk.form == LawForm::kSparse) {
    const auto entries = static_cast<size_t>(chunk.law_sizes[index]);
    const absl::Status law =
        law_from_weights(chunk.law_tokens.subspan(law_first, entries),
                         chunk.law_weights.subspan(law_first, entries), limits_.vocab, &place.law);
    CHECK(law.ok());
  }
  ++counters_.taken;
}

void DraftTail::commit(int32_t token) {
  const int position = committed_length();
  hashes_.push_back(extend_text_hash(hashes_.back(), token));
  if (count_ == 0) return;
  if (held(0).token == token) {
    ++counters_.matched;
    counters_.run_ahead += held(0).base_length < position;
    first_ = (first_ + 1) % static_cast<int>(ring_.size());
    --count_;
    return;
  }
  count_ = 0;
  min_base_ = position + 1;
}

void DraftTail::reopen(uint64_t epoch) {
  CHECK(epoch > epoch_);
  epoch_ = epoch;
  shut_out_ = false;
  count_ = 0;
  // The new worker is told the whole committed text.
  min_base_ = committed_length();
}

void DraftTail::read(int wanted, DraftList* drafts) const {
  drafts->clear();
  for (int i = 0; i < std::min(wanted, count_); ++i) read_one(i, drafts);
}

void DraftTail::read_one(int index, DraftList* drafts) const {
  if (index >= count_) return;
  const Held& place = held(index);
  if (place.form == LawForm::kSparse) {
    drafts->push_sparse(place.token, place.law.tokens, place.law.probabilities, made(index));
  } else {
    drafts->push(place.token, place.form, made(index));
  }
}

// Tokens are committed pass by pass, so what was shorter than the committed text knew no verdict
// that is newer than the pass before.
DraftMade DraftTail::made(int index) const {
  const Held& place = held(index);
  if (place.arrived_length < committed_length()) return DraftMade::kBeforeVerdict;
  return place.base_length < committed_length() ? DraftMade::kUnaware : DraftMade::kAfterVerdict;
}

}  // namespace brigade::runtime
