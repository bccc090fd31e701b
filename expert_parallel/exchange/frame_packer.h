// Cuts one rank's share of a dispatch plan into frames: whole rows in order, each with all its
// terms, as many as fit. Planned once per exchange for all ranks, then each frame is written when a
// buffer is there. Step thread; no allocation after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "expert_parallel/routing/dispatch_plan.h"
#include "expert_parallel/transport/frame.h"

namespace brigade::expert_parallel {

class FramePacker {
 public:
  FramePacker(int max_rows, int top_k, int num_ranks, int hidden);

  // For every rank of the plan but the coordinator. The plan must stay until the last frame.
  void start(const DispatchPlan& plan);

  struct Share {
    Rank rank = kCoordinator;
    uint32_t frames = 0;      // of this rank
    uint32_t next_frame = 0;  // frames == next_frame: all are written
    int next_row = 0;         // index into the rank's travelling rows
    bool done() const { return next_frame == frames; }

    const RankWork* work = nullptr;
    int first_start = 0;  // this share's part of the row starts
  };
  std::vector<Share>& shares() { return shares_; }

  // The slots of a share in order of row; a row's slots follow one another.
  std::span<const int32_t> slots_by_row(const Share& share);

  // Writes the share's next frame into `frame` (kMaxFrameBytes): header fields other than counts
  // and indices come from `header`; x is [rows, hidden] on the host. Returns its bytes; `terms` are
  // the slots in it, valid until the next call.
  size_t write(Share& share, FrameHeader header, const float* x, std::byte* frame,
               std::span<const int32_t>* terms);
  // The same for rows apart: header and index alone, whose bytes it returns. Rows of the frame are
  // the share's travelling rows from its next_row before the call to that after it.
  size_t write_head(Share& share, FrameHeader header, std::byte* head,
                    std::span<const int32_t>* terms);

 private:
  int rows_that_fit(const Share& share, int from) const;
  void write_index(Share& share, FrameHeader* header, std::byte* frame,
                   std::span<const int32_t>* terms);

  const size_t row_bytes_;
  const int hidden_;
  const DispatchPlan* plan_ = nullptr;
  std::vector<Share> shares_;
  std::vector<int32_t>
      starts_;  // per share: first entry of each row in by_row_, one more at the end
  std::vector<int32_t> by_row_;  // plan entries in order of travelling row, per share
  std::vector<int32_t> slots_;   // of the frame last written
};

}  // namespace brigade::expert_parallel
