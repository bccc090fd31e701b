// Drawing a token and reporting log-probabilities. Pure functions of their arguments.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/sampling/policy.h"
#include "runtime/sampling/random.h"
#include "runtime/stream/token_stream.h"

namespace brigade::runtime {

// argmax over candidates of log(p) + Gumbel(position, token); ties to the lower id. With one candidate
// no random number is used, so greedy rows never depend on the seed.
int32_t draw(const Distribution& distribution, const RandomKey& key, uint32_t position,
             RandomPurpose purpose = RandomPurpose::kGumbel);

// Log-probability of `token` under the softmax of the raw row (f64, fixed order), its rank (ties: lower
// id first) and the `top_n` most likely tokens.
TokenLogprob log_probability(std::span<const float> logits, int32_t token, int top_n);

}  // namespace brigade::runtime
