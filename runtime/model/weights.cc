#include "runtime/model/weights.h"

#include <utility>

#include "kernels/core/status.h"
#include "kernels/ops/math.h"
#include "runtime/model/expert_reader.h"
#include "runtime/model/rope_frequencies.h"
#include "runtime/model/tensor_rows.h"

namespace brigade::runtime {
namespace {

using kernels::DType;

std::vector<const TensorView*> expert_matrices(const ModelTensors& tensors) {
  std::vector<const TensorView*> matrices;
  for (const LayerTensors& layer : tensors.layers) {
    for (const FfnTensors& expert : layer.experts) {
      matrices.insert(matrices.end(), {&expert.gate, &expert.up, &expert.down});
    }
  }
  return matrices;
}

absl::Status upload_rope(const RopeSpec& rope, WeightUploader& uploader, DeviceWeights& weights) {
  const std::vector<double> frequencies = inverse_frequencies(rope);
  const size_t size = frequencies.size() * static_cast<size_t>(weights.max_positions);
  std::vector<float> cos_table(size), sin_table(size);
  kernels::fill_rope_tables(frequencies.data(), static_cast<int>(frequencies.size()),
                            weights.max_positions, 1.0, cos_table.data(), sin_table.data());
  ASSIGN_OR_RETURN(weights.rope_cos, uploader.host_floats("rope cosines", cos_table));
  ASSIGN_OR_RETURN(weights.rope_sin, uploader.host_floats("rope sines", sin_table));
  return absl::OkStatus();
}

absl::Status upload_dense(const LayerTensors& tensors, WeightUploader& uploader,
                          LayerWeights& layer) {
  const FfnTensors& ffn = tensors.dense;
  const DType dtype = common_dtype({&ffn.gate, &ffn.up, &ffn.down});
  ASSIGN_OR_RETURN(layer.dense_gate_up, uploader.gate_up(ffn.gate, ffn.up, dtype));
  ASSIGN_OR_RETURN(layer.dense_down, uploader.matrix_as(ffn.down, dtype));
  layer.dense_group.weights = {.gate_up = layer.dense_gate_up.matrix,
                               .down = layer.dense_down.matrix,
                               .ffn = static_cast<int>(ffn.gate.shape[0])};
  return absl::OkStatus();
}

absl::Status upload_layer(const LayerTensors& tensors, WeightUploader& uploader,
                          LayerWeights& layer) {
  ASSIGN_OR_RETURN(layer.input_norm, uploader.vector_f32({&tensors.input_norm}));
  ASSIGN_OR_RETURN(layer.post_norm, uploader.vector_f32({&tensors.post_norm}));
  ASSIGN_OR_RETURN(layer.qkv, uploader.matrix({&tensors.q, &tensors.k, &tensors.v}));
  ASSIGN_OR_RETURN(layer.o, uploader.matrix({&tensors.o}));
  if (tensors.q_bias.present()) {
    ASSIGN_OR_RETURN(layer.qkv_bias,
                     uploader.vector_f32({&tensors.q_bias, &tensors.k_bias, &tensors.v_bias}));
  }
  if (tensors.o_bias.present()) {
    ASSIGN_OR_RETURN(layer.o_bias, uploader.vector_f32({&tensors.o_bias}));
  }
  if (!tensors.router.present()) return upload_dense(tensors, uploader, layer);
  ASSIGN_OR_RETURN(layer.router, uploader.matrix({&tensors.router}));
  if (tensors.router_bias.present()) {
    ASSIGN_OR_RETURN(layer.router_bias, uploader.vector_f32({&tensors.router_bias}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceWeights>> upload_weights(const ModelSpec& spec,
                                                              const ModelTensors& tensors,
                                                              int max_positions,
                                                              WeightUploader& uploader) {
  auto weights = std::make_unique<DeviceWeights>();
  weights->max_positions = max_positions;
  ASSIGN_OR_RETURN(weights->embedding, uploader.rows(tensors.embedding));
  weights->embedding_dtype = tensors.embedding.dtype;
  RETURN_IF_ERROR(upload_rope(spec.rope, uploader, *weights));
  weights->layers.resize(tensors.layers.size());
  int moe_layers = 0;
  for (size_t i = 0; i < tensors.layers.size(); ++i) {
    RETURN_IF_ERROR(upload_layer(tensors.layers[i], uploader, weights->layers[i]));
    if (spec.layers[i].moe) weights->layers[i].moe_layer = moe_layers++;
  }
  ASSIGN_OR_RETURN(weights->final_norm, uploader.vector_f32({&tensors.final_norm}));
  ASSIGN_OR_RETURN(weights->lm_head, uploader.matrix({&tensors.lm_head}));
  return weights;
}

absl::StatusOr<expert_parallel::ExpertGeometry> expert_geometry(const ModelSpec& spec,
                                                                const ModelTensors& tensors,
                                                                DType wire_dtype) {
  expert_parallel::ExpertGeometry geometry{.hidden = spec.hidden, .wire_dtype = wire_dtype};
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) continue;
    const kernels::RouterRule& rule = layer.moe->rule;
    if (geometry.moe_layers > 0 &&
        (geometry.experts != rule.num_experts || geometry.top_k != rule.top_k ||
         geometry.ffn != layer.moe->ffn)) {
      return absl::InvalidArgumentError("MoE layers with different numbers or widths of experts");
    }
    geometry.experts = rule.num_experts;
    geometry.top_k = rule.top_k;
    geometry.ffn = layer.moe->ffn;
    ++geometry.moe_layers;
  }
  if (geometry.moe_layers > 0) {
    geometry.format = kernels::weight_format(expert_dtype(tensors));
  }
  return geometry;
}

absl::Status load_experts(const ModelTensors& tensors, expert_parallel::ExpertShard& shard,
                          WeightUploader& uploader) {
  const ExpertReader reader(tensors);
  RETURN_IF_ERROR(shard.plan(shard.geometry().moe_layers * shard.geometry().experts));
  std::vector<expert_parallel::PreparedExpert> all;
  for (int layer = 0; layer < reader.num_layers(); ++layer) {
    for (int e = 0; const FfnTensors* expert = reader.find(layer, e); ++e) {
      ASSIGN_OR_RETURN(auto prepared, reader.prepare(shard, uploader.upload(), layer, e));
      all.push_back(std::move(prepared));
      for (const TensorView* view : {&expert->gate, &expert->up, &expert->down})
        uploader.count(*view);
    }
  }
  RETURN_IF_ERROR(uploader.finish());
  for (auto& prepared : all) RETURN_IF_ERROR(shard.insert(std::move(prepared)));
  return absl::OkStatus();
}

LoadProgress progress_total(const ModelTensors& tensors, bool with_experts) {
  LoadProgress total;
  const auto add = [&total](const TensorView& view) {
    if (!view.present()) return;
    ++total.tensors_total;
    total.bytes_total += stored_bytes(view);
  };
  for (const TensorView* view : {&tensors.embedding, &tensors.final_norm, &tensors.lm_head})
    add(*view);
  for (const LayerTensors& layer : tensors.layers) {
    for (const TensorView* view :
         {&layer.input_norm, &layer.q, &layer.k, &layer.v, &layer.o, &layer.q_bias, &layer.k_bias,
          &layer.v_bias, &layer.o_bias, &layer.post_norm, &layer.dense.gate, &layer.dense.up,
          &layer.dense.down, &layer.router, &layer.router_bias}) {
      add(*view);
    }
  }
  if (with_experts) {
    for (const TensorView* view : expert_matrices(tensors)) add(*view);
  }
  return total;
}

}  // namespace brigade::runtime
