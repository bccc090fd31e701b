// Texts as tests of drafts compare them: the hash that a chunk carries, and what a tail holds.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/speculative/draft_tail.h"
#include "runtime/speculative/text_hash.h"

namespace brigade::tests {

inline uint64_t hash_of(const std::vector<int32_t>& text) {
  uint64_t hash = runtime::kEmptyTextHash;
  for (const int32_t token : text) hash = runtime::extend_text_hash(hash, token);
  return hash;
}

inline std::vector<int32_t> tail_of(const runtime::DraftTail& tail) {
  runtime::DraftList drafts(1000, 64, 8);
  tail.read(tail.size(), &drafts);
  std::vector<int32_t> tokens;
  for (const auto& draft : drafts.tokens()) tokens.push_back(draft.token);
  return tokens;
}

}  // namespace brigade::tests
