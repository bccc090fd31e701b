// From the scores of one row to its law: the one routine behind runtime/sampling and the op
// `policy` on the CPU. Host side, pure functions over the caller's memory: nothing is allocated.
// Any thread.
#pragma once

#include <limits>
#include <span>

#include "kernels/ops/sampling_args.h"
#include "kernels/ops/sampling_pieces.h"

namespace brigade::kernels {

inline constexpr double kExcludedScore = -std::numeric_limits<double>::infinity();

// False for a row that must not be sampled: NaN or +inf in it, or nothing finite.
bool usable_logits(std::span<const float> logits);

struct LawScratch {
  std::span<PolicyCandidate> candidates;  // [vocab]
  std::span<PolicyCandidate> selected;    // [vocab]
};

// scores: [vocab] after bias, penalties and exclusions (kExcludedScore). Applies temperature,
// top-k, top-p and min-p of `row` and returns the candidates in rising token id with weights above
// 0, the heaviest 1, that still have to be divided by their sum; greedy: one. Empty: nothing to
// draw from. The result lies in the scratch.
std::span<const PolicyCandidate> law_of_scores(const PolicyRow& row, std::span<const double> scores,
                                               const LawScratch& scratch);

}  // namespace brigade::kernels
