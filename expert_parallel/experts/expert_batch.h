// The rows of one or several dispatch frames of one exchange, grouped by expert and run through the
// shard: the worker's arithmetic. Rows of a single frame are read where they lie. One thread; no
// allocation after create().
#pragma once

#include <memory>
#include <vector>

#include "expert_parallel/experts/expert_shard.h"
#include "expert_parallel/transport/frame.h"
#include "kernels/core/host_buffer.h"

namespace brigade::expert_parallel {

class ExpertBatch {
 public:
  // Fits `frames` full frames, or one exchange of max_slots terms where that is less. Frames and
  // answers are in host memory, or with device_frames rows of both in the device's.
  static absl::StatusOr<std::unique_ptr<ExpertBatch>> create(kernels::Device& device,
                                                             const ExpertShard& shard, int frames,
                                                             int max_slots,
                                                             bool device_frames = false);

  // A frame with more than top_k terms a row never fits: no coordinator of ours writes it.
  bool ever_fits(const FrameView& frame) const;
  void clear();
  // False when there is no room behind what is in already. The frame's memory must stay until
  // start().
  bool add(const FrameView& frame);
  bool empty() const { return frames_.empty(); }

  // Enqueues all experts that the shard holds, and returns without waiting for a device. Frames in
  // host memory have been read when it returns; rows in the device's are read by the stream.
  absl::Status start(kernels::Stream& stream);
  // Once that has run, or failed: then no slot is answered and declined() holds them all.
  void finish(const absl::Status& status);
  // After finish(): answers row i belongs to slots()[i]; of the wire dtype. In host memory, or with
  // device_frames in the device's.
  std::span<const uint32_t> slots() const { return slots_; }
  const std::byte* answer_row(size_t i) const { return answers_ + i * answer_bytes_; }
  // Slots whose expert is not here.
  std::span<const uint32_t> declined() const { return declined_; }
  int max_terms() const { return max_terms_; }

 private:
  ExpertBatch(const ExpertShard& shard, bool host_memory, bool device_frames);
  void group_terms();
  absl::StatusOr<const float*> gather_rows(kernels::Stream& stream);

  const ExpertShard& shard_;
  const bool host_memory_, device_frames_;
  size_t answer_bytes_ = 0;  // of one row
  int max_rows_ = 0, max_terms_ = 0;
  int rows_ = 0, terms_ = 0;
  std::vector<FrameView> frames_;
  std::vector<int32_t> cursor_;  // [experts]
  std::vector<uint32_t> slots_, declined_;
  std::vector<kernels::ExpertGroup> groups_;
  kernels::Buffer x_, row_index_on_device_, out_, scratch_;
  kernels::HostBuffer row_index_;          // i32 of each term to run, grouped by expert
  kernels::HostBuffer host_x_, host_out_;  // where device memory is not the host's
  const std::byte* answers_ = nullptr;
};

}  // namespace brigade::expert_parallel
