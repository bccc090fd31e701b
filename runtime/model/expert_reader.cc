#include "runtime/model/expert_reader.h"

#include "absl/strings/str_cat.h"
#include "runtime/model/tensor_rows.h"

namespace brigade::runtime {

kernels::DType expert_dtype(const ModelTensors& tensors) {
  std::vector<const TensorView*> matrices;
  for (const LayerTensors& layer : tensors.layers) {
    for (const FfnTensors& expert : layer.experts) {
      matrices.insert(matrices.end(), {&expert.gate, &expert.up, &expert.down});
    }
  }
  return common_dtype(matrices);
}

ExpertReader::ExpertReader(const ModelTensors& tensors) {
  for (const LayerTensors& layer : tensors.layers) {
    if (!layer.experts.empty()) layers_.push_back(&layer.experts);
  }
  if (!layers_.empty()) dtype_ = expert_dtype(tensors);
}

const FfnTensors* ExpertReader::find(int moe_layer, int expert) const {
  if (moe_layer < 0 || moe_layer >= num_layers() || expert < 0) return nullptr;
  const std::vector<FfnTensors>& experts = *layers_[moe_layer];
  return static_cast<size_t>(expert) < experts.size() ? &experts[expert] : nullptr;
}

absl::StatusOr<expert_parallel::PreparedExpert> ExpertReader::prepare(
    const expert_parallel::ExpertShard& shard, kernels::StagedUpload& upload, int moe_layer,
    int expert) const {
  const FfnTensors* tensors = find(moe_layer, expert);
  if (tensors == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model has no expert ", expert, " in MoE layer ", moe_layer));
  }
  std::vector<float> gate, up, down;  // only for values that must be widened
  return shard.prepare(upload, moe_layer, expert,
                       {.gate = in_dtype(tensors->gate, dtype_, gate),
                        .up = in_dtype(tensors->up, dtype_, up),
                        .down = in_dtype(tensors->down, dtype_, down)});
}

}  // namespace brigade::runtime
