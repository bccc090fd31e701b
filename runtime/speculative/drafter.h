// What proposes tokens for one sequence: prompt lookup, the tail of a draft worker's stream, a
// script. A drafter may be wrong, late or empty; it can cost time, never change an output. Step
// thread; no call waits or allocates.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/speculative/draft_list.h"

namespace brigade::runtime {

class Drafter {
 public:
  virtual ~Drafter() = default;

  // Replaces `drafts` with at most `wanted` tokens that may follow `text`: the prompt and all that
  // has been committed, which only ever grows from call to call.
  virtual void draft(std::span<const int32_t> text, int wanted, DraftList* drafts) = 0;

  // `drafts` are about to be verified: appends at most one more that follows them if it has come by
  // now. Must not depend on that token's value. A drafter that has nothing to gain leaves it.
  virtual void run_ahead(std::span<const int32_t> /*text*/, DraftList* /*drafts*/) {}

  // `text` has grown by the tokens of a pass.
  virtual void committed(std::span<const int32_t> /*text*/) {}
};

}  // namespace brigade::runtime
