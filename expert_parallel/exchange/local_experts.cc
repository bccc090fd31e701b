#include "expert_parallel/exchange/local_experts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {

using kernels::Buffer;

absl::StatusOr<std::unique_ptr<LocalExperts>> LocalExperts::create(kernels::Device& device,
                                                                   const ExpertShard& shard,
                                                                   int max_rows) {
  auto local = std::unique_ptr<LocalExperts>(new LocalExperts(shard));
  const ExpertGeometry& geometry = shard.geometry();
  const size_t terms = size_t(max_rows) * geometry.top_k;
  local->groups_.reserve(geometry.experts);
  if (device.kind() != kernels::DeviceKind::kCpu) {
    const size_t index_bytes = 2 * terms * sizeof(int32_t);
    ASSIGN_OR_RETURN(local->host_index_, kernels::HostBuffer::allocate(device, index_bytes));
    ASSIGN_OR_RETURN(local->index_, Buffer::allocate(device, index_bytes));
  }
  ASSIGN_OR_RETURN(local->scratch_, Buffer::allocate(device, kernels::expert_ffn_scratch_bytes(
                                                                 device, static_cast<int>(terms),
                                                                 geometry.hidden, geometry.ffn)));
  return local;
}

absl::Status LocalExperts::run(kernels::Stream& stream, const DispatchPlan& plan,
                               const RankWork& work, int moe_layer, const float* x, void* answers) {
  const ExpertGeometry& geometry = shard_.geometry();
  groups_.clear();
  for (const ExpertEntries& entries : work.experts) {
    if (!shard_.holds(moe_layer, entries.expert)) {
      return absl::FailedPreconditionError(absl::StrCat("expert ", entries.expert, " of MoE layer ",
                                                        moe_layer, " is not loaded here"));
    }
    groups_.push_back({shard_.weights(moe_layer, entries.expert), entries.first - work.first_entry,
                       entries.count});
  }
  const int32_t* rows = plan.entry_row().data() + work.first_entry;
  const int32_t* slots = plan.entry_slot().data() + work.first_entry;
  if (stream.device().kind() != kernels::DeviceKind::kCpu) {
    const auto entries = static_cast<size_t>(work.num_entries);
    auto* const host = host_index_.as<int32_t>();
    std::copy_n(rows, entries, host);
    std::copy_n(slots, entries, host + entries);
    RETURN_IF_ERROR(stream.copy_to_device(index_.data(), host, 2 * entries * sizeof(int32_t)));
    rows = index_.as<int32_t>();
    slots = rows + entries;
  }
  return kernels::expert_ffn(stream, {.x = x,
                                      .row_index = rows,
                                      .out_index = slots,
                                      .out = answers,
                                      .out_dtype = geometry.wire_dtype,
                                      .groups = groups_.data(),
                                      .num_groups = static_cast<int>(groups_.size()),
                                      .total = work.num_entries,
                                      .hidden = geometry.hidden,
                                      .scratch = scratch_.data(),
                                      .scratch_bytes = scratch_.bytes()});
}

}  // namespace brigade::expert_parallel
