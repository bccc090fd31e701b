// How many rows of a step keep their logits. Pure function.
#pragma once

#include <algorithm>
#include <cstdint>

namespace brigade::runtime {

// Logits are f32 [rows, vocab], on the device and, for the rows that need them there, once more on
// the host; both together stay below this unless the sequences alone need more.
inline constexpr int64_t kMostLogitBytes = 256 << 20;

// One for each sequence, and room for the drafts of all as far as a step's rows and
// kMostLogitBytes go. A vocabulary of 151936 gets 220 rows, one of 32000 all of a step's 256.
inline int logit_rows(int max_sequences, int max_draft_depth, int max_rows, int vocab) {
  const int64_t with_drafts = int64_t{max_sequences} * (1 + max_draft_depth);
  const int64_t affordable = kMostLogitBytes / (int64_t{vocab} * 2 * 4);
  const int64_t rows = std::min({with_drafts, int64_t{max_rows}, affordable});
  return static_cast<int>(std::max(int64_t{max_sequences}, rows));
}

}  // namespace brigade::runtime
