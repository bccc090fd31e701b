// What one microbatch computes next: slices of sequences and the block copies that must come
// before. Filled by the scheduler, turned into a StepBatch by the engine. Reused, so planning
// allocates nothing.
#pragma once

#include <vector>

#include "runtime/scheduler/scheduled_sequence.h"

namespace brigade::runtime {

// Positions [start, start + count) of one sequence.
struct StepSlice {
  ScheduledSequence* sequence = nullptr;
  int start = 0;
  int count = 0;
  bool wants_logits = false;  // the slice ends at the last known token, drafts aside
  int drafts = 0;             // rows at its end, logits of each are wanted
  int events = 0;             // events it may push when it ends
  bool decode = false;        // a single row that continues a computed sequence
  bool parked = false;        // set by the engine: an expert was missing, nothing was computed
  int parked_drafts = 0;      // ... for the row of a draft: of the last so many
};

// `from` stays held until the step has ended.
struct BlockCopy {
  int from = -1;
  int to = -1;
};

struct StepPlan {
  std::vector<StepSlice> slices;
  std::vector<BlockCopy> copies;
  int rows = 0;
  int logit_rows = 0;
  int decodes = 0;
  int prefills = 0;
  int64_t cluster_changes = 0;  // that the scheduler knew of when it planned the step

  bool empty() const { return slices.empty(); }
  void clear() {
    slices.clear();
    copies.clear();
    rows = logit_rows = decodes = prefills = 0;
  }
};

}  // namespace brigade::runtime
