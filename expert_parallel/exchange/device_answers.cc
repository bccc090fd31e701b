#include "expert_parallel/exchange/device_answers.h"

#include "absl/strings/str_cat.h"
#include "expert_parallel/exchange/worker_links.h"
#include "kernels/core/status.h"
#include "kernels/ops/dense.h"

namespace brigade::expert_parallel {

using kernels::Buffer;

absl::Status DeviceAnswers::plan(kernels::Device& device, int max_slots, int hidden,
                                 kernels::DType dtype) {
  row_bytes_ = size_t(hidden) * kernels::dtype_bytes(dtype);
  if (row_bytes_ % sizeof(float) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("answers of ", row_bytes_,
                                                   " bytes a row: a device moves whole words"));
  }
  ASSIGN_OR_RETURN(arrivals_, Buffer::allocate(device, max_slots * row_bytes_));
  ASSIGN_OR_RETURN(position_on_device_, Buffer::allocate(device, max_slots * sizeof(int32_t)));
  ASSIGN_OR_RETURN(positions_,
                   kernels::HostBuffer::allocate(device, max_slots * sizeof(int32_t)));
  // A run and a frame have at least one slot that nobody else has.
  runs_.reserve(max_slots);
  kept_.reserve(max_slots);
  return absl::OkStatus();
}

void DeviceAnswers::begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  next_arrival_ = 0;
}

void DeviceAnswers::open_frame(uint64_t receipt, const std::byte* rows) {
  mutex_.lock();
  receipt_ = receipt;
  rows_ = rows;
  first_run_ = runs_.size();
}

void DeviceAnswers::add(uint32_t row, uint32_t slot) {
  const std::byte* at = rows_ + row * row_bytes_;
  positions_.as<int32_t>()[slot] = next_arrival_;
  Run* last = runs_.size() > first_run_ ? &runs_.back() : nullptr;
  if (last != nullptr && last->rows + last->count * row_bytes_ == at) {
    ++last->count;
  } else {
    runs_.push_back({at, next_arrival_, 1});
  }
  ++next_arrival_;
}

void DeviceAnswers::close_frame(bool kept) {
  if (kept) kept_.push_back({receipt_, runs_.size()});
  mutex_.unlock();
}

absl::StatusOr<bool> DeviceAnswers::collect(kernels::Stream& stream, WorkerLinks& links) {
  std::lock_guard<std::mutex> lock(mutex_);
  const bool any = !kept_.empty();
  absl::Status status;
  size_t run = 0;
  for (const Kept& frame : kept_) {
    for (; run < frame.runs_end && status.ok(); ++run) {
      status = stream.copy_on_device(arrivals_.as<std::byte>() + runs_[run].arrival * row_bytes_,
                                     runs_[run].rows, runs_[run].count * row_bytes_);
    }
    links.release_after(frame.receipt, &stream);
  }
  runs_.clear();
  kept_.clear();
  RETURN_IF_ERROR(status);
  return any;
}

void DeviceAnswers::drop(WorkerLinks& links) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const Kept& frame : kept_) links.release_after(frame.receipt, nullptr);
  kept_.clear();
  runs_.clear();
}

absl::Status DeviceAnswers::scatter(kernels::Stream& stream, int first, int count, void* to) {
  auto* index = position_on_device_.as<int32_t>() + first;
  RETURN_IF_ERROR(stream.copy_to_device(index, positions_.as<int32_t>() + first,
                                        count * sizeof(int32_t)));
  return kernels::gather_rows(stream, {.x = arrivals_.as<float>(),
                                       .index = index,
                                       .out = static_cast<float*>(to),
                                       .rows = count,
                                       .width = static_cast<int>(row_bytes_ / sizeof(float))});
}

}  // namespace brigade::expert_parallel
