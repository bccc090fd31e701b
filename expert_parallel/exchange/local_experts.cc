#include "expert_parallel/exchange/local_experts.h"

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
  ASSIGN_OR_RETURN(local->row_index_, Buffer::allocate(device, terms * sizeof(int32_t)));
  ASSIGN_OR_RETURN(local->slot_index_, Buffer::allocate(device, terms * sizeof(int32_t)));
  ASSIGN_OR_RETURN(local->scratch_,
                   Buffer::allocate(device, kernels::expert_ffn_scratch_bytes(
                                                device, static_cast<int>(terms), geometry.hidden,
                                                geometry.ffn)));
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
  const size_t bytes = size_t(work.num_entries) * sizeof(int32_t);
  RETURN_IF_ERROR(
      stream.copy_to_device(row_index_.data(), &plan.entry_row()[work.first_entry], bytes));
  RETURN_IF_ERROR(
      stream.copy_to_device(slot_index_.data(), &plan.entry_slot()[work.first_entry], bytes));
  return kernels::expert_ffn(stream, {.x = x,
                                      .row_index = row_index_.as<int32_t>(),
                                      .out_index = slot_index_.as<int32_t>(),
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
