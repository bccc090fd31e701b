// All weights of a model but its routed experts, on one device, in the form the kernels read.
// Filled once at start; read by every microbatch's forward pass, which it must outlive.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/experts/expert_shard.h"
#include "kernels/core/device.h"
#include "kernels/ops/moe.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/model_tensors.h"
#include "runtime/model/weight_uploader.h"

namespace brigade::runtime {

struct LayerWeights {
  kernels::Buffer input_norm, post_norm;  // f32 [hidden]
  PackedWeights qkv;                      // outputs: heads, then k heads, then v heads
  PackedWeights o;
  kernels::Buffer qkv_bias, o_bias;  // f32; empty when the model has none
  PackedWeights dense_gate_up, dense_down;
  kernels::ExpertGroup dense_group;  // dense layers: the whole FFN as one expert, first 0
  PackedWeights router;
  kernels::Buffer router_bias;  // f32 [experts] or empty
  int moe_layer = -1;           // index among the MoE layers; -1: dense
};

struct DeviceWeights {
  kernels::Buffer embedding;  // [vocab, hidden], row-major
  kernels::DType embedding_dtype = kernels::DType::kF32;
  kernels::Buffer rope_cos, rope_sin;  // f32 [max_positions, rotary_dim / 2]
  int max_positions = 0;
  std::vector<LayerWeights> layers;
  kernels::Buffer final_norm;
  PackedWeights lm_head;  // a packed copy of the embedding when tied
};

// `max_positions` bounds the rope tables and with them the context.
absl::StatusOr<std::unique_ptr<DeviceWeights>> upload_weights(const ModelSpec& spec,
                                                              const ModelTensors& tensors,
                                                              int max_positions,
                                                              WeightUploader& uploader);

// Sizes, weight format and wire dtype of the routed experts; moe_layers 0 for a dense model.
// INVALID_ARGUMENT when the MoE layers differ in their sizes.
absl::StatusOr<expert_parallel::ExpertGeometry> expert_geometry(const ModelSpec& spec,
                                                                const ModelTensors& tensors,
                                                                kernels::DType wire_dtype);

// Packs and uploads every routed expert of the model, and waits for all that `uploader` has under way.
absl::Status load_experts(const ModelTensors& tensors, expert_parallel::ExpertShard& shard,
                          WeightUploader& uploader);

// What a full load will count.
LoadProgress progress_total(const ModelTensors& tensors, bool with_experts);

}  // namespace brigade::runtime
