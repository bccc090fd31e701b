// The BPE model of a tokenizer file: one piece of text to token ids. Serves byte-level vocabularies
// (pieces come in the byte alphabet) and SentencePiece-like ones with byte fallback. O(n log n) in the
// piece, no recursion. Immutable after parse; encode may run on many threads, each with its scratch.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

// Buffers of one encode call, kept between pieces.
struct BpeScratch {
  struct Symbol {
    int32_t id;
    int32_t previous;  // position in the list; -1: none
    int32_t next;
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> heap;  // rank << 32 | position of the left symbol
};

class BpeModel {
 public:
  // `never_made`: control tokens. No merge and no whole-word match makes one, so that plain text
  // cannot spell it. INVALID_ARGUMENT names the key or the index of the merge.
  static absl::StatusOr<BpeModel> parse(const nlohmann::json& value,
                                        const absl::flat_hash_set<int32_t>& never_made,
                                        const std::string& where);

  const absl::flat_hash_map<std::string, int32_t>& vocab() const { return vocab_; }
  std::optional<int32_t> token_id(std::string_view content) const;
  bool byte_fallback() const { return byte_fallback_; }

  // Appends the ids of `piece`. INVALID_ARGUMENT when a character is not in the vocabulary and the
  // model has neither byte fallback nor an unknown token: text is never dropped.
  absl::Status encode(std::string_view piece, BpeScratch* scratch, std::vector<int32_t>* ids) const;

 private:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };
  static uint64_t pair_key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  absl::Status read_options(const nlohmann::json& value, const std::string& where);
  absl::Status read_vocab(const nlohmann::json& value, const std::string& where);
  absl::Status read_merges(const nlohmann::json& value,
                           const absl::flat_hash_set<int32_t>& never_made,
                           const std::string& where);
  absl::Status add_merge(const std::string& left, const std::string& right,
                         const absl::flat_hash_set<int32_t>& never_made, const std::string& where);
  void index_characters();

  // The id of one character, -1: not in the vocabulary.
  int32_t character_id(std::string_view character, char32_t code) const;
  absl::Status split_to_symbols(std::string_view piece, BpeScratch* scratch) const;
  // Rank of the pair at (i, its next); -1: no such merge.
  int32_t rank_at(const BpeScratch& scratch, int32_t i) const;
  void merge_at(int32_t rank, int32_t i, BpeScratch* scratch) const;
  void merge_short(BpeScratch* scratch) const;
  void merge_long(BpeScratch* scratch) const;

  absl::flat_hash_map<std::string, int32_t> vocab_;
  absl::flat_hash_map<uint64_t, int32_t> rank_of_pair_;
  std::vector<Merge> merges_;  // by rank
  absl::flat_hash_set<int32_t> never_made_;
  std::array<int32_t, 0x800> short_characters_;  // by code point, the one- and two-byte characters
  std::array<int32_t, 256> fallback_;            // ids of <0x00>..<0xFF>; -1: missing
  int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
};

}  // namespace brigade::runtime
