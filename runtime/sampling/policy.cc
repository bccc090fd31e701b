#include "runtime/sampling/policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/ops/math.h"

namespace brigade::runtime {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();

bool has_penalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

}  // namespace

TokenCounts::TokenCounts(std::span<const int32_t> prompt) {
  for (const int32_t token : prompt) seen_[token].in_prompt = true;
}

void TokenCounts::reserve_outputs(int tokens) { seen_.reserve(seen_.size() + tokens); }

void TokenCounts::add_output(int32_t token) { ++seen_[token].output_count; }

void TokenCounts::remove_output(int32_t token) {
  const auto found = seen_.find(token);
  CHECK(found != seen_.end() && found->second.output_count > 0);
  --found->second.output_count;
}

bool usable_logits(std::span<const float> logits) {
  bool any_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity()) return false;
    any_finite |= std::isfinite(logit);
  }
  return any_finite;
}

bool normalise(std::span<double> weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!std::isfinite(sum) || !(sum > 0)) return false;
  for (double& weight : weights) weight /= sum;
  return true;
}

Policy::Policy(int vocab) : scores_(vocab), allowed_(vocab) {
  candidates_.reserve(vocab);
  selected_.reserve(vocab);
}

void Policy::score_tokens(std::span<const float> logits, const PolicyInput& input) {
  const SamplingParams& params = *input.params;
  for (size_t t = 0; t < logits.size(); ++t) scores_[t] = logits[t];
  for (const auto& [token, bias] : params.logit_bias) scores_[token] += bias;
  if (input.counts != nullptr && has_penalties(params)) {
    input.counts->for_each([&](int32_t token, bool in_prompt, int output_count) {
      if (!in_prompt && output_count == 0) return;
      double& score = scores_[token];
      score = score > 0 ? score / params.repetition_penalty : score * params.repetition_penalty;
      if (output_count > 0) {
        score -= params.presence_penalty + params.frequency_penalty * output_count;
      }
    });
  }
  if (!params.allowed_tokens.empty()) {
    std::fill(allowed_.begin(), allowed_.end(), uint8_t{0});
    for (const int32_t token : params.allowed_tokens) allowed_[token] = 1;
    for (size_t t = 0; t < scores_.size(); ++t) {
      if (!allowed_[t]) scores_[t] = kExcluded;
    }
  }
  for (const int32_t token : params.banned_tokens) scores_[token] = kExcluded;
  for (const int32_t token : input.forbidden_now) scores_[token] = kExcluded;
}

bool Policy::pick_best(Distribution* out) const {
  size_t best = 0;
  for (size_t t = 1; t < scores_.size(); ++t) {
    if (scores_[t] > scores_[best]) best = t;
  }
  if (!std::isfinite(scores_[best])) return false;
  out->tokens.assign(1, static_cast<int32_t>(best));
  out->probabilities.assign(1, 1.0);
  return true;
}

// Keeps the `count` best candidates (score descending, ties to the lower id), in that order.
void Policy::select_best(size_t count) {
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  selected_.assign(candidates_.begin(), candidates_.end());
  count = std::min(count, selected_.size());
  if (count < selected_.size()) {
    std::nth_element(selected_.begin(), selected_.begin() + count, selected_.end(), better);
    selected_.resize(count);
  }
  std::sort(selected_.begin(), selected_.end(), better);
}

void Policy::apply_top_k(int top_k) {
  if (top_k <= 0 || static_cast<size_t>(top_k) >= candidates_.size()) return;
  select_best(top_k);
  candidates_.swap(selected_);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

// Turns scores into exp(score - best) and returns their sum, both in ascending token id.
double Policy::exponentiate(double best) {
  double sum = 0;
  for (Candidate& candidate : candidates_) {
    candidate.score = kernels::exp_f64(candidate.score - best);
    sum += candidate.score;
  }
  return sum;
}

// Candidates hold weights here. Looks at growing sets of the heaviest ones until the mass crosses.
void Policy::apply_top_p(double top_p, double sum) {
  if (top_p >= 1) return;
  const double wanted = top_p * sum;
  for (size_t count = 64;; count *= 8) {
    select_best(count);
    double mass = 0;
    for (size_t i = 0; i < selected_.size(); ++i) {
      mass += selected_[i].score;
      if (mass >= wanted) {
        selected_.resize(i + 1);
        break;
      }
    }
    if (mass >= wanted || selected_.size() == candidates_.size()) break;
  }
  candidates_.swap(selected_);
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
}

bool Policy::distribution(std::span<const float> logits, const PolicyInput& input, Distribution* out) {
  CHECK(logits.size() == scores_.size() && input.params != nullptr);
  if (!usable_logits(logits)) return false;
  const SamplingParams& params = *input.params;
  score_tokens(logits, input);
  if (params.temperature == 0) return pick_best(out);

  candidates_.clear();
  double best = kExcluded;
  for (size_t t = 0; t < scores_.size(); ++t) {
    if (scores_[t] == kExcluded) continue;
    const double score = scores_[t] / params.temperature;
    candidates_.push_back({score, static_cast<int32_t>(t)});
    best = std::max(best, score);
  }
  if (candidates_.empty()) return false;
  apply_top_k(params.top_k);
  apply_top_p(params.top_p, exponentiate(best));
  // The heaviest weight is exp(0) = 1.
  if (params.min_p > 0) {
    std::erase_if(candidates_, [&](const Candidate& c) { return c.score < params.min_p; });
  }
  out->tokens.clear();
  out->probabilities.clear();
  for (const Candidate& candidate : candidates_) {
    if (candidate.score == 0) continue;
    out->tokens.push_back(candidate.token);
    out->probabilities.push_back(candidate.score);
  }
  return normalise(out->probabilities);
}

}  // namespace brigade::runtime
