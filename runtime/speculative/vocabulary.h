// Do a draft worker and the coordinator mean the same by every token id? Hashes are compared first;
// where they differ the worker sends its tokens and the first id that differs is named. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "runtime/speculative/draft_messages.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {

// The token as it travels; content and bytes are cut at DraftBounds::kMaxTokenBytes. Blank for ids
// that are none.
VocabularyToken vocabulary_token(const Tokenizer& tokenizer, int32_t id);

// The tokens from `first_id` on, as many as one message takes.
VocabularyPart vocabulary_part(const Tokenizer& tokenizer, int first_id);

class VocabularyComparison {
 public:
  // `tokenizer` outlives this.
  explicit VocabularyComparison(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Parts come in order. OK: more is wanted. FAILED_PRECONDITION: a sentence with the first id that
  // differs, or that none does. INVALID_ARGUMENT: not the next part.
  absl::Status take(const VocabularyPart& part);

 private:
  const Tokenizer& tokenizer_;
  int next_id_ = 0;
};

}  // namespace brigade::runtime
