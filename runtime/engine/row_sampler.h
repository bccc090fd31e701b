// From a row of logits to the next token of a sequence: the policy, the draw at the token's
// absolute position, and the log-probabilities that were asked for. Step thread; allocates only for
// the latter.
#pragma once

#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "runtime/engine/sequence.h"
#include "runtime/sampling/draw.h"
#include "runtime/sampling/policy.h"

namespace brigade::runtime {

struct SampledToken {
  int32_t token = 0;
  std::optional<TokenLogprob> logprob;
};

class RowSampler {
 public:
  explicit RowSampler(int vocab);

  // `row` must be usable_logits(). INVALID_ARGUMENT when the request's options leave no token.
  absl::StatusOr<SampledToken> sample(std::span<const float> row, const GenerateRequest& request,
                                      const Sequence& sequence);

 private:
  Policy policy_;
  Distribution distribution_;
};

}  // namespace brigade::runtime
