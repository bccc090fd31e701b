// The sending half of ClusterExchange: shares of the plan become frames.
#include <algorithm>

#include "expert_parallel/exchange/cluster_exchange.h"
#include "kernels/core/status.h"
#include "kernels/ops/dense.h"

namespace brigade::expert_parallel {
namespace {

void add(std::atomic<uint64_t>& counter, uint64_t amount) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace

void ClusterExchange::count_shares() {
  bool several = false;
  for (const FramePacker::Share& share : packer_.shares()) {
    several |= share.frames > 1;
    int32_t rows_with_several = 0;
    int32_t last = -1, terms = 0;  // of one travelling row
    for (const int32_t slot : packer_.slots_by_row(share)) {
      const int32_t row = slot / config_.geometry.top_k;
      terms = row == last ? terms + 1 : 1;
      last = row;
      rows_with_several += terms == 2;
    }
    add(counters_.rows_with_several_experts, rows_with_several);
  }
  add(counters_.with_several_frames, several);
  const auto live = std::count_if(view_->incarnation.begin(), view_->incarnation.end(),
                                  [](uint64_t incarnation) { return incarnation != 0; });
  add(counters_.workers_without_rows,
      std::max<int64_t>(0, live - int64_t(packer_.shares().size())));
}

// Device frames: the plan's rows, share after share, for the gathers into frames.
absl::Status ClusterExchange::upload_rows() {
  auto* next = host_row_index_.as<int32_t>();
  for (const FramePacker::Share& share : packer_.shares())
    next = std::copy(share.work->rows.begin(), share.work->rows.end(), next);
  const size_t bytes = reinterpret_cast<std::byte*>(next) - host_row_index_.as<std::byte>();
  if (bytes == 0) return absl::OkStatus();
  return stream_->copy_to_device(row_index_.data(), host_row_index_.data(), bytes);
}

absl::Status ClusterExchange::gather(const FramePacker::Share& share, int first, int count,
                                     void* to) {
  int32_t* index = row_index_.as<int32_t>() + first;
  for (const FramePacker::Share& before : packer_.shares()) {
    if (&before == &share) break;
    index += before.work->rows.size();
  }
  return kernels::gather_rows(*stream_, {.x = layer_.x,
                                         .index = index,
                                         .out = static_cast<float*>(to),
                                         .rows = count,
                                         .width = config_.geometry.hidden});
}

absl::Status ClusterExchange::pack() {
  if (staged()) {
    if (!x_on_host_.ready()) return absl::OkStatus();
    // After an error on the device the point is passed too, and the rows were not written.
    RETURN_IF_ERROR(x_on_host_.wait_until(absl::InfinitePast()));
  }
  bool packed = false, starved = false;
  for (FramePacker::Share& share : packer_.shares()) {
    while (!share.done()) {
      ASSIGN_OR_RETURN(bool found_room, pack_share(share));
      if (!found_room) {
        // Ask to be woken, then look once more: the buffer may have come back in between.
        starved_.store(true, std::memory_order_seq_cst);
        ASSIGN_OR_RETURN(found_room, pack_share(share));
        if (!found_room) {
          starved = true;
          break;
        }
      }
      packed = true;
      // A full frame leaves while the next is packed.
      if (!share.done()) links_.flush();
    }
  }
  if (!starved) starved_.store(false, std::memory_order_relaxed);
  if (packed) {
    links_.flush();
    just_sent_ = true;
  }
  return absl::OkStatus();
}

// False: no buffer.
absl::StatusOr<bool> ClusterExchange::pack_share(FramePacker::Share& share) {
  std::byte* frame = links_.acquire(share.rank, stream_);
  if (frame == nullptr) return false;
  const FrameHeader header = {.session = links_.config().session,
                              .receiver = {share.rank, view_->incarnation_of(share.rank)},
                              .sender = links_.self(),
                              .placement_version = view_->placement->version(),
                              .step = step_,
                              .microbatch = static_cast<uint32_t>(config_.microbatch),
                              .layer = static_cast<uint32_t>(layer_.moe_layer)};
  const int row = share.next_row;
  std::span<const int32_t> terms;
  size_t bytes = 0;
  DeviceRows device_rows;
  absl::Status gathered;
  if (device_frames_) {
    bytes = packer_.write_head(share, header, frame, &terms);
    const int rows = share.next_row - row;
    device_rows = {.bytes = size_t(rows) * config_.geometry.hidden * sizeof(float),
                   .written_by = stream_};
    gathered = gather(share, row, rows, links_.device_rows(share.rank, frame));
  } else {
    const float* x = host_memory_ ? layer_.x : host_x_.as<float>();
    bytes = packer_.write(share, header, x, frame, &terms);
  }
  for (const int32_t term : terms) sent_[term] = kSent;
  // Also when the gather failed: the buffer must come back, and the error ends the step.
  links_.submit(share.rank, frame, bytes, static_cast<uint32_t>(share.next_row - row), device_rows);
  RETURN_IF_ERROR(gathered);
  return true;
}

}  // namespace brigade::expert_parallel
