#include "runtime/speculative/target_row.h"

namespace brigade::runtime {

RowOutput sufficient_output(const PolicyInput& input) {
  const SamplingParams& params = *input.params;
  if (!takes_logits_as_they_are(input)) return RowOutput::kLogits;
  if (params.temperature == 0) return RowOutput::kBestToken;
  const bool short_law = params.top_k >= 1 && params.top_k <= kMaxLawTokens;
  return short_law ? RowOutput::kLaw : RowOutput::kLogits;
}

void ask_for_row(int row, RowOutput output, const PolicyInput& input, StepBatch* batch) {
  batch->logit_rows.push_back(row);
  batch->outputs.push_back(output);
  if (output == RowOutput::kLaw) batch->policies.push_back(policy_row(*input.params));
}

TargetRow target_row(const StepModel& model, const StepBatch& batch, int index) {
  if (batch.output(index) == RowOutput::kLogits) return {.logits = model.logits(index), .law = {}};
  return {.logits = {}, .law = model.law(index)};
}

bool target_law(const TargetRow& row, const PolicyInput& input, Policy* policy, Distribution* out) {
  if (!row.logits.empty()) return policy->distribution(row.logits, input, out);
  out->tokens.assign(row.law.tokens.begin(), row.law.tokens.end());
  out->probabilities.assign(row.law.probabilities.begin(), row.law.probabilities.end());
  return !out->tokens.empty();
}

}  // namespace brigade::runtime
