#include "expert_parallel/exchange/local_exchange.h"

#include "absl/strings/str_cat.h"
#include "expert_parallel/exchange/local_experts.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

class LocalExchange : public Exchange {
 public:
  LocalExchange(const ExpertShard& shard, int max_rows)
      : geometry_(shard.geometry()),
        max_rows_(max_rows),
        placement_(Placement::local(geometry_.moe_layers, geometry_.experts)),
        plan_(max_rows, geometry_.top_k, geometry_.experts, /*num_ranks=*/0) {}

  absl::Status plan_buffers(kernels::Device& device, const ExpertShard& shard) {
    ASSIGN_OR_RETURN(experts_, LocalExperts::create(device, shard, max_rows_));
    ASSIGN_OR_RETURN(answers_, kernels::Buffer::allocate(
                                   device, size_t(max_rows_) * geometry_.top_k * geometry_.hidden *
                                               kernels::dtype_bytes(geometry_.wire_dtype)));
    return absl::OkStatus();
  }

  absl::Status begin(kernels::Stream& stream, const LayerRows& layer, kernels::Waker*) override {
    if (layer.rows > max_rows_) {
      return absl::InvalidArgumentError(absl::StrCat("exchange of MoE layer ", layer.moe_layer,
                                                     ": ", layer.rows, " rows, planned for ",
                                                     max_rows_));
    }
    const size_t terms = size_t(layer.rows) * geometry_.top_k;
    plan_.build({layer.experts, terms}, layer.rows, placement_, layer.moe_layer);
    if (terms == 0) return absl::OkStatus();
    return experts_->run(stream, plan_, plan_.work()[0], layer.moe_layer, layer.x, answers_.data());
  }

  // The answers are ordered before the stream's next op: nothing to wait for.
  absl::StatusOr<bool> poll() override { return true; }
  const void* answers() const override { return answers_.data(); }
  kernels::DType answer_dtype() const override { return geometry_.wire_dtype; }

 private:
  const ExpertGeometry geometry_;
  const int max_rows_;
  const Placement placement_;
  DispatchPlan plan_;
  std::unique_ptr<LocalExperts> experts_;
  kernels::Buffer answers_;  // [max_rows * top_k, hidden] of the wire dtype
};

}  // namespace

absl::StatusOr<std::unique_ptr<Exchange>> make_local_exchange(kernels::Device& device,
                                                              const ExpertShard& shard,
                                                              int max_rows) {
  auto exchange = std::make_unique<LocalExchange>(shard, max_rows);
  RETURN_IF_ERROR(exchange->plan_buffers(device, shard));
  return exchange;
}

}  // namespace brigade::expert_parallel
