#include "runtime/model/step_segments.h"

#include "kernels/core/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace brigade::runtime {

StepSegments::StepSegments(const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
                           const StepBuffers& buffers)
    : spec_(spec),
      weights_(weights),
      kv_(kv),
      buffers_(buffers),
      dense_groups_(spec.layers.size()) {
  for (int layer = 0; layer < spec.num_layers(); ++layer) {
    if (spec.layers[layer].moe) routed_.push_back(layer);
  }
}

absl::Status StepSegments::enqueue(kernels::Stream& stream, int segment, const StepShape& shape,
                                   const ExpertAnswers& answers) {
  int first = 0;
  if (segment == 0) {
    RETURN_IF_ERROR(embed(stream, shape));
  } else {
    const int answered = routed_layer(segment - 1);
    RETURN_IF_ERROR(end_layer(stream, answered, shape,
                              {.answers = answers.data,
                               .answer_dtype = answers.dtype,
                               .gates = buffers_.gates.as<float>(),
                               .top_k = spec_.layers[answered].moe->rule.top_k}));
    first = answered + 1;
  }
  if (segment + 1 == count()) return run_layers(stream, first, spec_.num_layers(), shape);
  const int routed = routed_layer(segment);
  RETURN_IF_ERROR(run_layers(stream, first, routed, shape));
  RETURN_IF_ERROR(attend(stream, routed, shape));
  return route(stream, routed, shape);
}

int32_t* StepSegments::chosen_experts(int moe_layer) const {
  return buffers_.host_experts.as<int32_t>() +
         static_cast<size_t>(moe_layer) * buffers_.host_experts_stride;
}

absl::Status StepSegments::embed(kernels::Stream& stream, const StepShape& shape) {
  return kernels::embedding(stream, {.ids = buffers_.tokens.as<int32_t>(),
                                     .table = weights_.embedding.data(),
                                     .table_dtype = weights_.embedding_dtype,
                                     .out = buffers_.hidden.as<float>(),
                                     .rows = shape.rows,
                                     .hidden = spec_.hidden,
                                     .vocab = spec_.vocab});
}

// Dense layers [first, end).
absl::Status StepSegments::run_layers(kernels::Stream& stream, int first, int end,
                                      const StepShape& shape) {
  for (int layer = first; layer < end; ++layer) {
    RETURN_IF_ERROR(attend(stream, layer, shape));
    RETURN_IF_ERROR(run_dense(stream, layer, shape));
  }
  return absl::OkStatus();
}

// hidden += o(attention(rope(qkv(norm(hidden))))); normed = the FFN's norm of that.
absl::Status StepSegments::attend(kernels::Stream& stream, int layer_index,
                                  const StepShape& shape) {
  const LayerWeights& layer = weights_.layers[layer_index];
  const AttentionSpec& a = spec_.attention;
  const int64_t q_width = int64_t{a.heads} * a.head_dim,
                kv_width = int64_t{a.kv_heads} * a.head_dim;
  float* qkv = buffers_.qkv.as<float>();
  // Later layers' input was normed with the sum that ended the layer before.
  if (layer_index == 0) RETURN_IF_ERROR(norm_hidden(stream, layer.input_norm, shape.rows));
  RETURN_IF_ERROR(kernels::matmul(stream, {.x = buffers_.normed.as<float>(),
                                           .weights = layer.qkv.matrix,
                                           .bias = layer.qkv_bias.as<float>(),
                                           .y = qkv,
                                           .x_stride = spec_.hidden,
                                           .y_stride = buffers_.qkv_stride,
                                           .rows = shape.rows}));
  RETURN_IF_ERROR(kernels::rope_kv_write(stream, {.q = qkv,
                                                  .k = qkv + q_width,
                                                  .v = qkv + q_width + kv_width,
                                                  .positions = buffers_.positions.as<int32_t>(),
                                                  .slots = buffers_.slots.as<int64_t>(),
                                                  .cos_table = weights_.rope_cos.as<float>(),
                                                  .sin_table = weights_.rope_sin.as<float>(),
                                                  .cache = kv_.layer(layer_index),
                                                  .q_stride = buffers_.qkv_stride,
                                                  .k_stride = buffers_.qkv_stride,
                                                  .v_stride = buffers_.qkv_stride,
                                                  .rows = shape.rows,
                                                  .heads = a.heads,
                                                  .rotary_dim = spec_.rope.rotary_dim,
                                                  .max_positions = weights_.max_positions,
                                                  .pairing = spec_.rope.pairing}));
  RETURN_IF_ERROR(paged_attention(stream, layer_index, shape));
  RETURN_IF_ERROR(kernels::matmul(stream, {.x = buffers_.attention.as<float>(),
                                           .weights = layer.o.matrix,
                                           .bias = layer.o_bias.as<float>(),
                                           .y = buffers_.hidden.as<float>(),
                                           .x_stride = q_width,
                                           .y_stride = spec_.hidden,
                                           .rows = shape.rows,
                                           .accumulate = true}));
  return norm_hidden(stream, layer.post_norm, shape.rows);
}

absl::Status StepSegments::paged_attention(kernels::Stream& stream, int layer,
                                           const StepShape& shape) {
  const AttentionSpec& a = spec_.attention;
  return kernels::paged_attention(stream, {.q = buffers_.qkv.as<float>(),
                                           .cache = kv_.layer(layer),
                                           .block_tables = buffers_.block_tables.as<int32_t>(),
                                           .row_sequence = buffers_.row_sequence.as<int32_t>(),
                                           .row_position = buffers_.positions.as<int32_t>(),
                                           .out = buffers_.attention.as<float>(),
                                           .q_stride = buffers_.qkv_stride,
                                           .out_stride = int64_t{a.heads} * a.head_dim,
                                           .rows = shape.rows,
                                           .heads = a.heads,
                                           .max_blocks = shape.max_blocks,
                                           .sequences = shape.sequences,
                                           .window = a.window,
                                           .scale = static_cast<float>(a.scale),
                                           .scratch = buffers_.attention_scratch.data(),
                                           .scratch_bytes = buffers_.attention_scratch.bytes()});
}

// Router scores in f32, the choice of experts, and its way to the host.
absl::Status StepSegments::route(kernels::Stream& stream, int layer_index, const StepShape& shape) {
  const LayerWeights& layer = weights_.layers[layer_index];
  const kernels::RouterRule& rule = spec_.layers[layer_index].moe->rule;
  RETURN_IF_ERROR(kernels::matmul(stream, {.x = buffers_.normed.as<float>(),
                                           .weights = layer.router.matrix,
                                           .y = buffers_.router_logits.as<float>(),
                                           .x_stride = spec_.hidden,
                                           .y_stride = rule.num_experts,
                                           .rows = shape.rows}));
  RETURN_IF_ERROR(kernels::router_top_k(stream, {.logits = buffers_.router_logits.as<float>(),
                                                 .bias = layer.router_bias.as<float>(),
                                                 .experts = buffers_.experts.as<int32_t>(),
                                                 .gates = buffers_.gates.as<float>(),
                                                 .rule = rule,
                                                 .rows = shape.rows}));
  return stream.copy_to_host(chosen_experts(layer.moe_layer), buffers_.experts.data(),
                             size_t(shape.rows) * rule.top_k * sizeof(int32_t));
}

// hidden += down(silu(gate(x)) * up(x)): a dense FFN is one expert with gate 1.
absl::Status StepSegments::run_dense(kernels::Stream& stream, int layer, const StepShape& shape) {
  // The group list must live until the op has run, which can be after this call.
  kernels::ExpertGroup& group = dense_groups_[layer];
  group = weights_.layers[layer].dense_group;
  group.count = shape.rows;
  RETURN_IF_ERROR(kernels::expert_ffn(stream, {.x = buffers_.normed.as<float>(),
                                               .out = buffers_.dense_out.data(),
                                               .groups = &group,
                                               .num_groups = 1,
                                               .total = shape.rows,
                                               .hidden = spec_.hidden,
                                               .scratch = buffers_.ffn_scratch.data(),
                                               .scratch_bytes = buffers_.ffn_scratch.bytes()}));
  return end_layer(stream, layer, shape, {.answers = buffers_.dense_out.data(), .top_k = 1});
}

// hidden += the answers; where a layer follows, normed = its norm of that.
absl::Status StepSegments::end_layer(kernels::Stream& stream, int layer, const StepShape& shape,
                                     kernels::CombineArgs args) {
  args.residual = buffers_.hidden.as<float>();
  args.rows = shape.rows;
  args.hidden = spec_.hidden;
  if (layer + 1 < spec_.num_layers()) {
    args.norm_weight = weights_.layers[layer + 1].input_norm.as<float>();
    args.normed = buffers_.normed.as<float>();
    args.norm_eps = static_cast<float>(spec_.norm_eps);
  }
  return kernels::combine(stream, args);
}

// normed = norm(hidden).
absl::Status StepSegments::norm_hidden(kernels::Stream& stream, const kernels::Buffer& weight,
                                       int rows) {
  return kernels::rms_norm(stream, {.x = buffers_.hidden.as<float>(),
                                    .weight = weight.as<float>(),
                                    .out = buffers_.normed.as<float>(),
                                    .x_stride = spec_.hidden,
                                    .out_stride = spec_.hidden,
                                    .rows = rows,
                                    .hidden = spec_.hidden,
                                    .eps = static_cast<float>(spec_.norm_eps)});
}

}  // namespace brigade::runtime
