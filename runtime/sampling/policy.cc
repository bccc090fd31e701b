#include "runtime/sampling/policy.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "kernels/ops/policy_law.h"

namespace brigade::runtime {
namespace {

using kernels::kExcludedScore;

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

bool takes_logits_as_they_are(const PolicyInput& input) {
  const SamplingParams& params = *input.params;
  return params.logit_bias.empty() && params.allowed_tokens.empty() &&
         params.banned_tokens.empty() && input.forbidden_now.empty() &&
         (input.counts == nullptr || !has_penalties(params));
}

kernels::PolicyRow policy_row(const SamplingParams& params) {
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .top_k = params.top_k};
}

bool usable_logits(std::span<const float> logits) { return kernels::usable_logits(logits); }

bool normalise(std::span<double> weights) {
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!std::isfinite(sum) || !(sum > 0)) return false;
  for (double& weight : weights) weight /= sum;
  return true;
}

Policy::Policy(int vocab) : scores_(vocab), candidates_(vocab), selected_(vocab), allowed_(vocab) {}

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
      if (!allowed_[t]) scores_[t] = kExcludedScore;
    }
  }
  for (const int32_t token : params.banned_tokens) scores_[token] = kExcludedScore;
  for (const int32_t token : input.forbidden_now) scores_[token] = kExcludedScore;
}

bool Policy::distribution(std::span<const float> logits, const PolicyInput& input,
                          Distribution* out) {
  CHECK(logits.size() == scores_.size() && input.params != nullptr);
  if (!usable_logits(logits)) return false;
  score_tokens(logits, input);
  const kernels::PolicyRow row = policy_row(*input.params);
  out->tokens.clear();
  out->probabilities.clear();
  for (const auto& candidate : kernels::law_of_scores(row, scores_, {candidates_, selected_})) {
    out->tokens.push_back(candidate.token);
    out->probabilities.push_back(candidate.score);
  }
  return normalise(out->probabilities);
}

}  // namespace brigade::runtime
