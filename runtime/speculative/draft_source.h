// Where the engine gets a drafter for a sequence. Step thread; outlives its drafters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/time/time.h"
#include "runtime/request/request.h"
#include "runtime/speculative/drafter.h"

namespace brigade::runtime {

class DraftSource {
 public:
  virtual ~DraftSource() = default;

  // Before the drafters are asked for a step.
  virtual void collect(absl::Time /*now*/) {}
  // Of one token's law, in what its drafters give.
  virtual int max_law_entries() const { return 0; }
  // A drafter for a sequence whose committed text is `text`; `eos_tokens` end it unless the request
  // ignores them. `request` outlives the drafter. Null: no drafts for this one.
  virtual std::unique_ptr<Drafter> open(const GenerateRequest& request, int sample_index,
                                        std::span<const int32_t> eos_tokens,
                                        std::span<const int32_t> text) = 0;
};

// Prompt lookup for every sequence.
class PromptLookupSource final : public DraftSource {
 public:
  std::unique_ptr<Drafter> open(const GenerateRequest& request, int sample_index,
                                std::span<const int32_t> eos_tokens,
                                std::span<const int32_t> text) override;
};

}  // namespace brigade::runtime
