// What the launches of a step depend on, beside addresses that stay the same from step to step.
// Plain data; any thread.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace brigade::runtime {

// Numbers that end up in kernel arguments, grids and the lengths of copies. Two steps of equal
// shape enqueue the same work, whatever their tokens, positions and blocks are: those are read from
// device memory.
struct StepShape {
  int rows = 0;
  int sequences = 0;
  int max_blocks = 0;  // width of the block tables
  int logit_rows = 0;
  int copied_rows = 0;  // of those: their logits go to the host
  int law_rows = 0;     // of those: their law does; of the others the best token
  bool operator==(const StepShape&) const = default;
};

// Where the experts' answers to a layer are; an exchange may choose anew each time.
struct ExpertAnswers {
  const void* data = nullptr;  // device [rows * top_k, hidden]; null: no layer was asked for yet
  kernels::DType dtype = kernels::DType::kF32;
  bool operator==(const ExpertAnswers&) const = default;
};

// How often steps ran as graphs (StepGraphs); counters since start.
struct StepGraphCounts {
  int64_t launches = 0;    // of segments
  int64_t recordings = 0;  // of segments
  int64_t evictions = 0;   // shapes that made room for others
  int shapes = 0;          // held now

  StepGraphCounts& operator+=(const StepGraphCounts& other) {
    launches += other.launches;
    recordings += other.recordings;
    evictions += other.evictions;
    shapes += other.shapes;
    return *this;
  }
};

// Width of block tables that hold `blocks` entries: the next power of two, at most `max_blocks`, so
// that shapes recur while sequences grow. Entries beyond a sequence's blocks are -1 and never read,
// and no bit of a result depends on the width (mode identical). Attention's grid is made for the
// width: where a sequence's segments are divided among blocks, at most half of the blocks find
// nothing to do.
inline int block_table_width(int blocks, int max_blocks) {
  const auto rounded = std::bit_ceil(static_cast<unsigned>(std::max(blocks, 1)));
  return std::max(blocks, static_cast<int>(std::min<unsigned>(rounded, max_blocks)));
}

}  // namespace brigade::runtime
