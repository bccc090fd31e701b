// A row of the target (or of a drafter) as the host reads it: its logits, or the law made of them
// on the device. Plain data over the step model's memory; step thread.
#pragma once

#include <span>

#include "runtime/model/step_model.h"
#include "runtime/sampling/policy.h"

namespace brigade::runtime {

struct TargetRow {
  std::span<const float> logits;  // [vocab]; empty: `law` is what there is
  RowLaw law;

  // False: nothing may be drawn from it.
  bool usable() const { return logits.empty() ? !law.tokens.empty() : usable_logits(logits); }
};

// What of a row suffices to draw by `input`: its best token at temperature 0, its law with a small
// top_k, where nothing but the row and its rules plays a part; else its logits.
RowOutput sufficient_output(const PolicyInput& input);
// Asks for `output` of the batch's next logit row.
void ask_for_row(int row, RowOutput output, const PolicyInput& input, StepBatch* batch);

// Of the batch that `model` has done, the logit row of that index.
TargetRow target_row(const StepModel& model, const StepBatch& batch, int index);

// The law to draw from: by `policy` from the logits, or the row's own, which was made for an input
// that asks for the same. False when nothing may be drawn. Allocates nothing once `out` has room.
bool target_law(const TargetRow& row, const PolicyInput& input, Policy* policy, Distribution* out);

}  // namespace brigade::runtime
