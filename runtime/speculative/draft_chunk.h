// Drafted tokens of one sequence as a draft worker sends them. The spans point into the message.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/speculative/draft_law.h"

namespace brigade::runtime {

struct DraftChunk {
  uint64_t epoch = 0;        // of the worker's session with this sequence
  int base_length = 0;       // committed tokens (prompt included) the worker knew of
  uint64_t prefix_hash = 0;  // of the worker's text before `position`, its own guesses included
  int position = 0;          // of tokens[0] in the text; not before base_length
  std::span<const int32_t> tokens;
  LawForm form = LawForm::kNone;  // of all of them
  // kSparse: token i's law is the next law_sizes[i] entries.
  std::span<const int32_t> law_sizes;
  std::span<const int32_t> law_tokens;
  std::span<const float> law_weights;
};

}  // namespace brigade::runtime
