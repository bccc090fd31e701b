#include "expert_parallel/experts/expert_batch.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {

using kernels::Buffer;
using kernels::HostBuffer;

ExpertBatch::ExpertBatch(const ExpertShard& shard, bool host_memory, bool device_frames)
    : shard_(shard),
      host_memory_(host_memory),
      device_frames_(device_frames),
      answer_bytes_(size_t(shard.geometry().hidden) *
                    kernels::dtype_bytes(shard.geometry().wire_dtype)),
      cursor_(shard.geometry().experts) {}

absl::StatusOr<std::unique_ptr<ExpertBatch>> ExpertBatch::create(kernels::Device& device,
                                                                 const ExpertShard& shard,
                                                                 int frames, int max_slots,
                                                                 bool device_frames) {
  const ExpertGeometry& geometry = shard.geometry();
  auto batch = std::unique_ptr<ExpertBatch>(
      new ExpertBatch(shard, device.kind() == kernels::DeviceKind::kCpu, device_frames));
  const size_t row_bytes = size_t(geometry.hidden) * sizeof(float);
  // A row brings at least one term of the index.
  const size_t rows_of_frame =
      (kMaxFrameBytes - kFrameHeaderBytes) / (row_bytes + sizeof(FrameEntry));
  if (rows_of_frame == 0)
    return absl::InvalidArgumentError(
        absl::StrCat("hidden size ", geometry.hidden, " does not fit a frame"));
  batch->max_rows_ = static_cast<int>(std::min<size_t>(rows_of_frame * frames, max_slots));
  batch->max_terms_ =
      static_cast<int>(std::min<int64_t>(int64_t(batch->max_rows_) * geometry.top_k, max_slots));
  const size_t terms = batch->max_terms_;
  const size_t scratch =
      kernels::expert_ffn_scratch_bytes(device, batch->max_terms_, geometry.hidden, geometry.ffn);
  batch->frames_.reserve(frames);
  batch->slots_.reserve(terms);
  batch->declined_.reserve(terms);
  batch->groups_.reserve(geometry.experts);
  ASSIGN_OR_RETURN(batch->x_, Buffer::allocate(device, batch->max_rows_ * row_bytes));
  ASSIGN_OR_RETURN(batch->row_index_on_device_, Buffer::allocate(device, terms * sizeof(int32_t)));
  ASSIGN_OR_RETURN(batch->out_, Buffer::allocate(device, terms * batch->answer_bytes_));
  ASSIGN_OR_RETURN(batch->scratch_, Buffer::allocate(device, scratch));
  ASSIGN_OR_RETURN(batch->row_index_, HostBuffer::allocate(device, terms * sizeof(int32_t)));
  const bool staged = !batch->host_memory_ && !device_frames;
  if (staged) {
    ASSIGN_OR_RETURN(batch->host_x_, HostBuffer::allocate(device, batch->x_.bytes()));
    ASSIGN_OR_RETURN(batch->host_out_, HostBuffer::allocate(device, batch->out_.bytes()));
  }
  batch->answers_ = staged ? batch->host_out_.as<std::byte>() : batch->out_.as<std::byte>();
  return batch;
}

bool ExpertBatch::ever_fits(const FrameView& frame) const {
  const int64_t rows = frame.header.row_count, terms = frame.header.entry_count;
  return terms <= rows * shard_.geometry().top_k && terms <= max_terms_ && rows <= max_rows_;
}

void ExpertBatch::clear() {
  frames_.clear();
  rows_ = terms_ = 0;
}

bool ExpertBatch::add(const FrameView& frame) {
  const int rows = static_cast<int>(frame.header.row_count),
            terms = static_cast<int>(frame.header.entry_count);
  if (frames_.size() == frames_.capacity() || rows_ + rows > max_rows_ ||
      terms_ + terms > max_terms_)
    return false;
  frames_.push_back(frame);
  rows_ += rows;
  terms_ += terms;
  return true;
}

// Counting sort by expert, in order of arrival inside an expert: order cannot change any row's
// bits.
void ExpertBatch::group_terms() {
  const uint32_t layer = frames_[0].header.layer;
  std::fill(cursor_.begin(), cursor_.end(), 0);
  slots_.clear();
  declined_.clear();
  groups_.clear();
  for (const FrameView& frame : frames_) {
    for (uint32_t i = 0; i < frame.header.entry_count; ++i) ++cursor_[frame.entry(i).expert];
  }
  int32_t next = 0;
  for (size_t expert = 0; expert < cursor_.size(); ++expert) {
    const int32_t count = cursor_[expert];
    if (count == 0) continue;
    if (!shard_.holds(static_cast<int>(layer), static_cast<int>(expert))) {
      cursor_[expert] = -1;
      continue;
    }
    groups_.push_back(
        {shard_.weights(static_cast<int>(layer), static_cast<int>(expert)), next, count});
    cursor_[expert] = next;
    next += count;
  }
  slots_.resize(next);
  int32_t first_row = 0;
  for (const FrameView& frame : frames_) {
    for (uint32_t i = 0; i < frame.header.entry_count; ++i) {
      const FrameEntry entry = frame.entry(i);
      if (cursor_[entry.expert] < 0) {
        declined_.push_back(entry.slot);
        continue;
      }
      const int32_t at = cursor_[entry.expert]++;
      row_index_.as<int32_t>()[at] = first_row + entry.row;
      slots_[at] = entry.slot;
    }
    first_row += static_cast<int32_t>(frame.header.row_count);
  }
}

absl::StatusOr<const float*> ExpertBatch::gather_rows(kernels::Stream& stream) {
  if ((host_memory_ || device_frames_) && frames_.size() == 1)
    return reinterpret_cast<const float*>(frames_[0].rows);
  size_t at = 0;
  for (const FrameView& frame : frames_) {
    const size_t bytes = size_t(frame.header.row_count) * shard_.geometry().hidden * sizeof(float);
    std::byte* to = x_.as<std::byte>() + at;
    if (device_frames_) {
      RETURN_IF_ERROR(stream.copy_on_device(to, frame.rows, bytes));
    } else if (host_memory_) {
      RETURN_IF_ERROR(stream.copy_to_device(to, frame.rows, bytes));
    } else {
      std::memcpy(host_x_.as<std::byte>() + at, frame.rows, bytes);
    }
    at += bytes;
  }
  if (!host_memory_ && !device_frames_)
    RETURN_IF_ERROR(stream.copy_to_device(x_.data(), host_x_.data(), at));
  return x_.as<float>();
}

absl::Status ExpertBatch::start(kernels::Stream& stream) {
  CHECK(!frames_.empty());
  group_terms();
  if (slots_.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const float* x, gather_rows(stream));
  const size_t terms = slots_.size();
  RETURN_IF_ERROR(stream.copy_to_device(row_index_on_device_.data(), row_index_.data(),
                                        terms * sizeof(int32_t)));
  RETURN_IF_ERROR(kernels::expert_ffn(stream, {.x = x,
                                               .row_index = row_index_on_device_.as<int32_t>(),
                                               .out = out_.data(),
                                               .out_dtype = shard_.geometry().wire_dtype,
                                               .groups = groups_.data(),
                                               .num_groups = static_cast<int>(groups_.size()),
                                               .total = static_cast<int>(terms),
                                               .hidden = shard_.geometry().hidden,
                                               .scratch = scratch_.data(),
                                               .scratch_bytes = scratch_.bytes()}));
  if (host_memory_ || device_frames_) return absl::OkStatus();
  return stream.copy_to_host(host_out_.data(), out_.data(), terms * answer_bytes_);
}

void ExpertBatch::finish(const absl::Status& status) {
  if (status.ok()) return;
  declined_.insert(declined_.end(), slots_.begin(), slots_.end());
  slots_.clear();
}

}  // namespace brigade::expert_parallel
