// A drafted token with the law it was drawn from. `rejection` is exact only when that law is the
// one the token was really drawn from, so both sides build it with the same routine from the same
// f32 weights. Pure functions; called by drafters and by the step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "runtime/sampling/policy.h"

namespace brigade::runtime {

enum class LawForm : uint8_t {
  kNone,       // not known: such a token can be compared, never tested against a law
  kPointMass,  // chosen without chance: probability 1 for the token itself
  kSparse,     // a list of tokens; every other token has probability 0
};

// When a draft was made, seen from the verdict of its sequence's pass before.
enum class DraftMade : uint8_t {
  kAfterVerdict,   // with the verdict known; also whatever is made here, on demand
  kUnaware,        // its maker did not know the verdict yet
  kBeforeVerdict,  // it had arrived before there was one
};

struct DraftedToken {
  int32_t token = 0;
  LawForm form = LawForm::kNone;
  DraftMade made = DraftMade::kAfterVerdict;
  std::span<const int32_t> law_tokens;        // kSparse: ascending
  std::span<const double> law_probabilities;  // kSparse: sum to 1 (law_from_weights)
};

// Probability of `token` in a list of ascending tokens; 0 when it is not there.
double probability_in(std::span<const int32_t> tokens, std::span<const double> probabilities,
                      int32_t token);

// Probability that `draft` was drawn as `token`. 0 for kNone.
double draft_probability(const DraftedToken& draft, int32_t token);

// The `most` likely tokens of `full` (ties: lower id first) as f32 weights in ascending token id:
// what travels. The drafter must draw from law_from_weights() of them, not from `full`.
void sparse_weights(const Distribution& full, int most, std::vector<int32_t>* tokens,
                    std::vector<float>* weights);

// The law that weights stand for. INVALID_ARGUMENT names the entry: lengths differ, an id outside
// [0, vocab) or not ascending, a weight that is negative or not finite, or no weight at all.
absl::Status law_from_weights(std::span<const int32_t> tokens, std::span<const float> weights,
                              int vocab, Distribution* law);

}  // namespace brigade::runtime
