// Reads single experts of an opened model and packs them for a shard, at start or while others
// serve. Owns nothing: the opened model outlives it. Any thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/experts/expert_shard.h"
#include "runtime/model/model_tensors.h"

namespace brigade::runtime {

class ExpertReader {
 public:
  explicit ExpertReader(const ModelTensors& tensors);

  // INVALID_ARGUMENT names an expert or layer that the model does not have. `shard` is of this
  // model's expert_geometry(); `upload` as ExpertShard::prepare() wants it.
  absl::StatusOr<expert_parallel::PreparedExpert> prepare(const expert_parallel::ExpertShard& shard,
                                                          kernels::StagedUpload& upload,
                                                          int moe_layer, int expert) const;
  // Null when there is none.
  const FfnTensors* find(int moe_layer, int expert) const;
  int num_layers() const { return static_cast<int>(layers_.size()); }

 private:
  std::vector<const std::vector<FfnTensors>*> layers_;  // of the MoE layers
  kernels::DType dtype_ = kernels::DType::kF32;         // that holds every expert's values
};

// The dtype that holds every value of all experts of a model with experts.
kernels::DType expert_dtype(const ModelTensors& tensors);

}  // namespace brigade::runtime
