// Whether a batch keeps to the limits and to the KV blocks that it names, so that no kernel ever
// sees an index that a caller's mistake put out of range. A pure function; allocates only for an
// error.
#pragma once

#include "absl/status/status.h"
#include "runtime/model/step_model.h"

namespace brigade::runtime {

struct BatchBounds {
  StepLimits limits;
  int vocab = 0;
  int max_positions = 0;
  KvGeometry kv;
};

// INVALID_ARGUMENT names the row and the field. Every row's slot must be the one its block table
// gives for its position (or -1, which writes nothing), and all blocks up to it must exist.
absl::Status check_batch(const StepBatch& batch, const BatchBounds& bounds);

}  // namespace brigade::runtime
