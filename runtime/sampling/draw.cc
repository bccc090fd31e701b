#include "runtime/sampling/draw.h"

#include <algorithm>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/ops/math.h"

namespace brigade::runtime {

int32_t draw(const Distribution& distribution, const RandomKey& key, uint32_t position,
             RandomPurpose purpose) {
  CHECK(!distribution.tokens.empty());
  if (distribution.tokens.size() == 1) return distribution.tokens[0];
  int32_t best_token = distribution.tokens[0];
  double best = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < distribution.tokens.size(); ++i) {
    const int32_t token = distribution.tokens[i];
    const double score = kernels::log_f64(distribution.probabilities[i]) +
                         gumbel(key, position, purpose, static_cast<uint32_t>(token));
    if (score > best) {
      best = score;
      best_token = token;
    }
  }
  return best_token;
}

TokenLogprob log_probability(std::span<const float> logits, int32_t token, int top_n) {
  CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  const double best = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  int rank = 1;
  for (size_t t = 0; t < logits.size(); ++t) {
    sum += kernels::exp_f64(static_cast<double>(logits[t]) - best);
    rank += logits[t] > logits[token] ||
            (logits[t] == logits[token] && static_cast<int32_t>(t) < token);
  }
  const double log_sum = kernels::log_f64(sum);
  const auto logprob = [&](int32_t t) { return static_cast<double>(logits[t]) - best - log_sum; };

  TokenLogprob result{.logprob = logprob(token), .rank = rank, .top = {}};
  // Insertion into a short list that stays sorted; ties keep the lower id first.
  const size_t wanted = std::min<size_t>(std::max(top_n, 0), logits.size());
  result.top.reserve(wanted + 1);
  for (size_t t = 0; wanted > 0 && t < logits.size(); ++t) {
    if (result.top.size() == wanted && logits[t] <= logits[result.top.back().first]) continue;
    const auto place = std::find_if(result.top.begin(), result.top.end(), [&](const auto& entry) {
      return logits[t] > logits[entry.first];
    });
    result.top.insert(place, {static_cast<int32_t>(t), 0.0});
    if (result.top.size() > wanted) result.top.pop_back();
  }
  for (auto& [id, value] : result.top) value = logprob(id);
  return result;
}

}  // namespace brigade::runtime
