#include "expert_parallel/exchange/frame_packer.h"

#include <algorithm>
#include <cstring>

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

FramePacker::FramePacker(int max_rows, int top_k, int num_ranks, int hidden)
    : row_bytes_(size_t(hidden) * sizeof(float)),
      hidden_(hidden),
      starts_(size_t(max_rows) * std::min(top_k, std::max(num_ranks, 1)) + num_ranks + 1),
      by_row_(size_t(max_rows) * top_k),
      slots_(size_t(max_rows) * top_k) {
  shares_.reserve(num_ranks);
  CHECK(kFrameHeaderBytes + frame_index_bytes(FrameKind::kDispatch, top_k) + row_bytes_ <=
        kMaxFrameBytes);
}

void FramePacker::start(const DispatchPlan& plan) {
  plan_ = &plan;
  shares_.clear();
  int next_start = 0;
  for (const RankWork& work : plan.work()) {
    if (work.rank == kCoordinator) continue;
    const int rows = static_cast<int>(work.rows.size());
    // Counting sort of the rank's entries by row; experts stay ascending inside a row.
    int32_t* starts = &starts_[next_start];
    std::fill(starts, starts + rows + 1, 0);
    const auto travelling = plan.entry_travelling().subspan(work.first_entry, work.num_entries);
    for (const int32_t row : travelling) ++starts[row + 1];
    for (int row = 0; row < rows; ++row) starts[row + 1] += starts[row];
    for (int i = 0; i < work.num_entries; ++i) {
      by_row_[work.first_entry + starts[travelling[i]]++] = work.first_entry + i;
    }
    for (int row = rows; row > 0; --row) starts[row] = starts[row - 1];  // ends back to starts
    starts[0] = 0;
    Share share = {.rank = work.rank, .work = &work, .first_start = next_start};
    for (int row = 0; row < rows; row = rows_that_fit(share, row)) ++share.frames;
    shares_.push_back(share);
    next_start += rows + 1;
  }
}

std::span<const int32_t> FramePacker::slots_by_row(const Share& share) {
  const RankWork& work = *share.work;
  for (int i = 0; i < work.num_entries; ++i)
    slots_[i] = plan_->entry_slot()[by_row_[work.first_entry + i]];
  return {slots_.data(), static_cast<size_t>(work.num_entries)};
}

// The first row that does not fit behind rows [from, ...).
int FramePacker::rows_that_fit(const Share& share, int from) const {
  const int32_t* starts = &starts_[share.first_start];
  const int rows = static_cast<int>(share.work->rows.size());
  int to = from + 1;  // one always fits
  while (to < rows && to - from < 0x10000) {
    const size_t index = frame_index_bytes(FrameKind::kDispatch, starts[to + 1] - starts[from]);
    if (kFrameHeaderBytes + index + (to + 1 - from) * row_bytes_ > kMaxFrameBytes) break;
    ++to;
  }
  return to;
}

void FramePacker::write_index(Share& share, FrameHeader* header, std::byte* frame,
                              std::span<const int32_t>* terms) {
  CHECK(!share.done());
  const int from = share.next_row, to = rows_that_fit(share, from);
  const int32_t* starts = &starts_[share.first_start];
  header->kind = FrameKind::kDispatch;
  header->dtype = kernels::DType::kF32;
  header->hidden = static_cast<uint32_t>(hidden_);
  header->frame_index = share.next_frame;
  header->frame_count = share.frames;
  header->row_count = static_cast<uint32_t>(to - from);
  header->entry_count = static_cast<uint32_t>(starts[to] - starts[from]);
  uint32_t next = 0;
  for (int row = from; row < to; ++row) {
    size_t expert_of = 0;  // experts ascend inside a row
    for (int32_t i = starts[row]; i < starts[row + 1]; ++i) {
      const int32_t entry = by_row_[share.work->first_entry + i];
      while (share.work->experts[expert_of].first + share.work->experts[expert_of].count <= entry)
        ++expert_of;
      const int32_t slot = plan_->entry_slot()[entry];
      slots_[next] = slot;
      put_entry(frame_index(frame), next++,
                {static_cast<uint16_t>(row - from),
                 static_cast<uint16_t>(share.work->experts[expert_of].expert),
                 static_cast<uint32_t>(slot)});
    }
  }
  share.next_row = to;
  ++share.next_frame;
  *terms = {slots_.data(), next};
}

size_t FramePacker::write(Share& share, FrameHeader header, const float* x, std::byte* frame,
                          std::span<const int32_t>* terms) {
  const int from = share.next_row;
  write_index(share, &header, frame, terms);
  std::byte* rows = frame_rows(frame, header.kind, header.entry_count);
  for (int row = from; row < share.next_row; ++row) {
    std::memcpy(rows + (row - from) * row_bytes_, x + size_t(share.work->rows[row]) * hidden_,
                row_bytes_);
  }
  return seal_frame(header, frame);
}

size_t FramePacker::write_head(Share& share, FrameHeader header, std::byte* head,
                               std::span<const int32_t>* terms) {
  write_index(share, &header, head, terms);
  return seal_head(header, head);
}

}  // namespace brigade::expert_parallel
