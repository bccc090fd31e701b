#include "expert_parallel/exchange/local_exchange.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_parallel/routing/dispatch_plan.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::Buffer;

class LocalExchange : public Exchange {
 public:
  LocalExchange(const ExpertShard& shard, int max_rows)
      : shard_(shard),
        max_rows_(max_rows),
        placement_(Placement::local(shard.geometry().moe_layers, shard.geometry().experts)),
        plan_(max_rows, shard.geometry().top_k, shard.geometry().experts, /*num_ranks=*/0) {
    groups_.reserve(shard.geometry().experts);
  }

  absl::Status plan_buffers(kernels::Device& device) {
    const ExpertGeometry& geometry = shard_.geometry();
    const size_t terms = size_t(max_rows_) * geometry.top_k;
    scratch_bytes_ = kernels::expert_ffn_scratch_bytes(static_cast<int>(terms), geometry.hidden,
                                                       geometry.ffn, device.num_threads());
    ASSIGN_OR_RETURN(row_index_, Buffer::allocate(device, terms * sizeof(int32_t)));
    ASSIGN_OR_RETURN(slot_index_, Buffer::allocate(device, terms * sizeof(int32_t)));
    ASSIGN_OR_RETURN(answers_, Buffer::allocate(device, terms * geometry.hidden *
                                                            dtype_bytes(geometry.wire_dtype)));
    ASSIGN_OR_RETURN(scratch_, Buffer::allocate(device, scratch_bytes_));
    return absl::OkStatus();
  }

  absl::Status begin(kernels::Stream& stream, const LayerRows& layer, kernels::Waker*) override {
    if (layer.rows > max_rows_) {
      return absl::InvalidArgumentError(absl::StrCat("exchange of MoE layer ", layer.moe_layer, ": ",
                                                     layer.rows, " rows, planned for ", max_rows_));
    }
    const ExpertGeometry& geometry = shard_.geometry();
    const int terms = layer.rows * geometry.top_k;
    plan_.build({layer.experts, static_cast<size_t>(terms)}, layer.rows, placement_, layer.moe_layer);
    if (terms == 0) return absl::OkStatus();
    groups_.clear();
    for (const ExpertEntries& entries : plan_.work()[0].experts) {
      if (!shard_.holds(layer.moe_layer, entries.expert)) {
        return absl::FailedPreconditionError(absl::StrCat("expert ", entries.expert, " of MoE layer ",
                                                          layer.moe_layer, " is not loaded here"));
      }
      groups_.push_back({shard_.weights(layer.moe_layer, entries.expert), entries.first, entries.count});
    }
    RETURN_IF_ERROR(stream.copy_to_device(row_index_.data(), plan_.entry_row().data(),
                                          terms * sizeof(int32_t)));
    RETURN_IF_ERROR(stream.copy_to_device(slot_index_.data(), plan_.entry_slot().data(),
                                          terms * sizeof(int32_t)));
    return kernels::expert_ffn(stream, {.x = layer.x,
                                        .row_index = row_index_.as<int32_t>(),
                                        .out_index = slot_index_.as<int32_t>(),
                                        .out = answers_.data(),
                                        .out_dtype = geometry.wire_dtype,
                                        .groups = groups_.data(),
                                        .num_groups = static_cast<int>(groups_.size()),
                                        .total = terms,
                                        .hidden = geometry.hidden,
                                        .scratch = scratch_.data(),
                                        .scratch_bytes = scratch_bytes_});
  }

  // The answers are ordered before the stream's next op: nothing to wait for.
  absl::StatusOr<bool> poll() override { return true; }
  const void* answers() const override { return answers_.data(); }
  kernels::DType answer_dtype() const override { return shard_.geometry().wire_dtype; }

 private:
  const ExpertShard& shard_;
  const int max_rows_;
  const Placement placement_;
  DispatchPlan plan_;
  std::vector<kernels::ExpertGroup> groups_;
  Buffer row_index_, slot_index_;  // [max_rows * top_k]
  Buffer answers_;                 // [max_rows * top_k, hidden] of the wire dtype
  Buffer scratch_;
  size_t scratch_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exchange>> make_local_exchange(kernels::Device& device,
                                                              const ExpertShard& shard, int max_rows) {
  auto exchange = std::make_unique<LocalExchange>(shard, max_rows);
  RETURN_IF_ERROR(exchange->plan_buffers(device));
  return exchange;
}

}  // namespace brigade::expert_parallel
