// A draft worker that joins like any other, drafts with the real engine over a small random model,
// and then spoils what it sends: other tokens, other places, old messages again, nothing for a
// while, far too much. What it does comes from a seed. One thread of its own; ends with the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace brigade::tests {

class LyingDraftWorker {
 public:
  // Dials `address` again whenever its stream ends. `model`: a dense one with `tokenizer`'s ids.
  LyingDraftWorker(const std::string& address, const std::string& model,
                   const runtime::Tokenizer& tokenizer, uint64_t seed);
  ~LyingDraftWorker();

  int64_t lies() const;     // messages that were not the engine's
  int64_t honest() const;   // that were
  int64_t streams() const;  // dialled so far

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace brigade::tests
