#include "runtime/engine/row_sampler.h"

namespace brigade::runtime {

RowSampler::RowSampler(int vocab) : policy_(vocab) {
  distribution_.tokens.reserve(static_cast<size_t>(vocab));
  distribution_.probabilities.reserve(static_cast<size_t>(vocab));
}

absl::StatusOr<SampledToken> RowSampler::sample(std::span<const float> row,
                                                const GenerateRequest& request,
                                                const Sequence& sequence) {
  const PolicyInput input{.params = &request.sampling,
                          .counts = &sequence.output.counts(),
                          .forbidden_now = sequence.output.forbidden_now()};
  if (!policy_.distribution(row, input, &distribution_)) {
    return absl::InvalidArgumentError(
        "sampling: allowed_tokens, banned_tokens and min_tokens together leave no token to choose");
  }
  const RandomKey key{.seed = request.sampling.seed,
                      .sample_index = static_cast<uint32_t>(sequence.sample_index)};
  SampledToken sampled;
  // The position of the token being drawn, so that preemption and resumption draw the same.
  sampled.token = draw(distribution_, key, static_cast<uint32_t>(sequence.tokens.size()));
  if (request.sampling.logprobs >= 0) {
    sampled.logprob = log_probability(row, sampled.token, request.sampling.logprobs);
  }
  return sampled;
}

}  // namespace brigade::runtime
