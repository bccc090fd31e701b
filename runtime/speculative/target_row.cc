#include "runtime/speculative/target_row.h"

namespace brigade::runtime {

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
