#include "runtime/tokenizer/bpe_model.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

// Up to this many symbols a scan for the lowest rank beats the heap; nearly all words are shorter.
constexpr size_t kShortPiece = 24;

absl::Status not_encodable(std::string_view piece, size_t at, const Utf8Unit& unit) {
  if (!unit.valid) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "text holds the byte 0x%02X, which the vocabulary cannot express", uint8_t(piece[at])));
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "text holds the character U+%04X, which the vocabulary cannot express", uint32_t(unit.code)));
}

}  // namespace

std::optional<int32_t> BpeModel::token_id(std::string_view content) const {
  const auto found = vocab_.find(absl::string_view(content.data(), content.size()));
  if (found == vocab_.end()) return std::nullopt;
  return found->second;
}

int32_t BpeModel::character_id(std::string_view character, char32_t code) const {
  if (code < short_characters_.size()) return short_characters_[code];
  const auto id = token_id(character);
  return id && !never_made_.contains(*id) ? *id : -1;
}

// One symbol a character. A character outside the vocabulary becomes its bytes where the model has
// them all, else unknown tokens (one for each, or one for a row of them).
absl::Status BpeModel::split_to_symbols(std::string_view piece, BpeScratch* scratch) const {
  auto& symbols = scratch->symbols;
  symbols.clear();
  const auto add = [&](int32_t id) { symbols.push_back({id, 0, 0}); };
  bool pending_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const Utf8Unit unit = decode_utf8(piece, at);
    const std::string_view character = piece.substr(at, unit.length);
    const int32_t id = unit.valid ? character_id(character, unit.code) : -1;
    const auto has_byte = [&](char c) { return fallback_[static_cast<uint8_t>(c)] >= 0; };
    if (id >= 0) {
      if (pending_unknown) add(unknown_);
      pending_unknown = false;
      add(id);
    } else if (byte_fallback_ && std::all_of(character.begin(), character.end(), has_byte)) {
      for (const char c : character) add(fallback_[static_cast<uint8_t>(c)]);
    } else if (unknown_ >= 0) {
      if (pending_unknown && !fuse_unknown_) add(unknown_);
      pending_unknown = true;
    } else {
      return not_encodable(piece, at, unit);
    }
    at += unit.length;
  }
  if (pending_unknown) add(unknown_);
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int32_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int32_t>(i) + 1 : -1;
  }
  return absl::OkStatus();
}

int32_t BpeModel::rank_at(const BpeScratch& scratch, int32_t i) const {
  const auto& left = scratch.symbols[i];
  if (left.next < 0) return -1;
  const auto found = rank_of_pair_.find(pair_key(left.id, scratch.symbols[left.next].id));
  return found == rank_of_pair_.end() ? -1 : found->second;
}

// The right symbol leaves the list; id -1 marks it dead.
void BpeModel::merge_at(int32_t rank, int32_t i, BpeScratch* scratch) const {
  auto& left = scratch->symbols[i];
  auto& right = scratch->symbols[left.next];
  left.id = merges_[rank].result;
  left.next = right.next;
  right.id = -1;
  if (left.next >= 0) scratch->symbols[left.next].previous = i;
}

// Repeatedly merges the pair of lowest rank, the leftmost among equals.
void BpeModel::merge_short(BpeScratch* scratch) const {
  std::array<int32_t, kShortPiece> ranks;
  const auto count = static_cast<int32_t>(scratch->symbols.size());
  for (int32_t i = 0; i < count; ++i) ranks[i] = rank_at(*scratch, i);
  while (true) {
    int32_t best = -1;
    for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
      if (ranks[i] >= 0 && (best < 0 || ranks[i] < ranks[best])) best = i;
    }
    if (best < 0) return;
    merge_at(ranks[best], best, scratch);
    ranks[best] = rank_at(*scratch, best);
    const int32_t previous = scratch->symbols[best].previous;
    if (previous >= 0) ranks[previous] = rank_at(*scratch, previous);
  }
}

// The same order with a heap. An entry is stale when its two symbols have changed since; then the
// change has pushed its own entries.
void BpeModel::merge_long(BpeScratch* scratch) const {
  auto& heap = scratch->heap;
  auto& symbols = scratch->symbols;
  heap.clear();
  const auto entry_at = [&](int32_t i) {
    const int32_t rank = rank_at(*scratch, i);
    return rank < 0 ? std::numeric_limits<uint64_t>::max()
                    : static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(i);
  };
  const auto push = [&](int32_t i) {
    const uint64_t entry = entry_at(i);
    if (entry == std::numeric_limits<uint64_t>::max()) return;
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    const uint64_t entry = entry_at(static_cast<int32_t>(i));
    if (entry != std::numeric_limits<uint64_t>::max()) heap.push_back(entry);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t entry = heap.back();
    heap.pop_back();
    const auto rank = static_cast<int32_t>(entry >> 32);
    const auto i = static_cast<int32_t>(entry & 0xFFFFFFFFu);
    const Merge& merge = merges_[rank];
    const bool current = symbols[i].id == merge.left && symbols[i].next >= 0 &&
                         symbols[symbols[i].next].id == merge.right;
    if (!current) continue;
    merge_at(rank, i, scratch);
    push(i);
    if (symbols[i].previous >= 0) push(symbols[i].previous);
  }
}

absl::Status BpeModel::encode(std::string_view piece, BpeScratch* scratch,
                              std::vector<int32_t>* ids) const {
  if (piece.empty()) return absl::OkStatus();
  if (piece.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError("text piece of 2 GiB or more");
  }
  if (ignore_merges_) {
    const auto whole = token_id(piece);
    if (whole && !never_made_.contains(*whole)) return ids->push_back(*whole), absl::OkStatus();
  }
  if (absl::Status status = split_to_symbols(piece, scratch); !status.ok()) return status;
  scratch->symbols.size() <= kShortPiece ? merge_short(scratch) : merge_long(scratch);
  for (int32_t i = 0; i >= 0; i = scratch->symbols[i].next) {
    ids->push_back(scratch->symbols[i].id);
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
