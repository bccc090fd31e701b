// Turns the scheduler's plan into the arrays of a StepBatch: rows in slice order, slots, block
// tables, and what is wanted of each row. All arrays are planned for the model's limits, so
// building allocates nothing. Step thread.
#pragma once

#include "runtime/model/step_model.h"
#include "runtime/scheduler/step_plan.h"

namespace brigade::runtime {

class BatchBuilder {
 public:
  BatchBuilder(const StepLimits& limits, int block_size);

  // The batch stays valid until the next build().
  const StepBatch& build(const StepPlan& plan);
  const StepBatch& batch() const { return batch_; }

 private:
  void add_rows(const StepSlice& slice, int sequence_index);

  const int block_size_;
  const int max_blocks_;
  StepBatch batch_;
};

}  // namespace brigade::runtime
