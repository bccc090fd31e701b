#include "runtime/model/forward_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "runtime/model/step_batch_check.h"

namespace brigade::runtime {

using kernels::Buffer;

absl::StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::create(
    kernels::Device& device, const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
    std::unique_ptr<expert_parallel::Exchange> exchange, const StepLimits& limits) {
  std::unique_ptr<ForwardPass> pass(
      new ForwardPass(spec, weights, kv, std::move(exchange), limits));
  CHECK(pass->use_.layers() == 0 || pass->exchange_ != nullptr);
  ASSIGN_OR_RETURN(pass->stream_, device.create_stream());
  ASSIGN_OR_RETURN(pass->buffers_, StepBuffers::plan(device, spec, limits));
  ASSIGN_OR_RETURN(StepOutput output, StepOutput::plan(device, spec, weights, limits));
  pass->output_.emplace(std::move(output));
  return pass;
}

ForwardPass::ForwardPass(const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
                         std::unique_ptr<expert_parallel::Exchange> exchange,
                         const StepLimits& limits)
    : spec_(spec),
      weights_(weights),
      kv_(kv),
      limits_(limits),
      exchange_(std::move(exchange)),
      dense_groups_(spec.layers.size()),
      first_parked_(static_cast<size_t>(std::max(limits.max_sequences, 0)), limits.max_rows) {
  parked_rows_.reserve(static_cast<size_t>(std::max(limits.max_rows, 0)));
  for (const LayerSpec& layer : spec.layers) {
    if (layer.moe) use_.add_layer(layer.moe->rule.num_experts);
  }
}

ForwardPass::~ForwardPass() {
  // Nothing may still run on the buffers that go now. There is nobody to tell of an error.
  if (stream_ != nullptr) stream_->synchronize(absl::Now() + absl::Minutes(1)).IgnoreError();
}

absl::Status ForwardPass::begin(const StepBatch& batch, kernels::Waker* waker) {
  if (stage_ != Stage::kIdle) return absl::FailedPreconditionError("a step is in progress");
  RETURN_IF_ERROR(check_batch(batch, {.limits = limits_,
                                      .vocab = spec_.vocab,
                                      .max_positions = weights_.max_positions,
                                      .kv = kv_.geometry()}));
  batch_ = &batch;
  waker_ = waker;
  rows_ = batch.rows();
  layer_ = 0;
  if (!parked_rows_.empty())
    std::fill(first_parked_.begin(), first_parked_.end(), limits_.max_rows);
  parked_rows_.clear();
  RETURN_IF_ERROR(buffers_.copy_batch(*stream_, batch));
  RETURN_IF_ERROR(output_->begin(*stream_, batch));
  RETURN_IF_ERROR(kernels::embedding(*stream_, {.ids = buffers_.tokens.as<int32_t>(),
                                                .table = weights_.embedding.data(),
                                                .table_dtype = weights_.embedding_dtype,
                                                .out = buffers_.hidden.as<float>(),
                                                .rows = rows_,
                                                .hidden = spec_.hidden,
                                                .vocab = spec_.vocab}));
  stage_ = Stage::kLayer;
  return absl::OkStatus();
}

absl::StatusOr<StepModel::Progress> ForwardPass::advance() {
  if (batch_ == nullptr) return absl::FailedPreconditionError("no step has begun");
  while (stage_ != Stage::kIdle) {
    const absl::StatusOr<bool> moved = step();
    if (!moved.ok()) {
      // What is enqueued still reads the batch, which the caller may drop now. Errors end the wait.
      stream_->synchronize(absl::Now() + absl::Minutes(1)).IgnoreError();
      stage_ = Stage::kIdle;
      batch_ = nullptr;
      return moved.status();
    }
    if (!*moved) return Progress::kWaiting;
  }
  return Progress::kDone;
}

// One piece of the way; false when it has to wait for the device or the exchange.
absl::StatusOr<bool> ForwardPass::step() {
  switch (stage_) {
    case Stage::kLayer:
      RETURN_IF_ERROR(run_layer());
      return true;
    case Stage::kRouted:
      return start_experts();
    case Stage::kExperts:
      return finish_experts();
    case Stage::kOutput:
      RETURN_IF_ERROR(run_output());
      return true;
    case Stage::kFinishing:
      if (!event_.ready()) return false;
      // After an error on the device the point is passed too, and the logits were not written.
      RETURN_IF_ERROR(event_.wait_until(absl::InfinitePast()));
      RETURN_IF_ERROR(output_->check());
      count_experts();
      stage_ = Stage::kIdle;
      return true;
    case Stage::kIdle:
      break;
  }
  return true;
}

absl::Status ForwardPass::run_layer() {
  RETURN_IF_ERROR(attend());
  const LayerWeights& layer = weights_.layers[layer_];
  RETURN_IF_ERROR(rms_norm(layer.post_norm, buffers_.hidden, buffers_.normed, rows_));
  if (spec_.layers[layer_].moe) return route();
  RETURN_IF_ERROR(run_dense());
  next_layer();
  return absl::OkStatus();
}

// hidden += o(attention(rope(qkv(norm(hidden))))).
absl::Status ForwardPass::attend() {
  const LayerWeights& layer = weights_.layers[layer_];
  const AttentionSpec& a = spec_.attention;
  const int64_t q_width = int64_t{a.heads} * a.head_dim,
                kv_width = int64_t{a.kv_heads} * a.head_dim;
  float* qkv = buffers_.qkv.as<float>();
  // Later layers' input was normed with the sum that ended the layer before.
  if (layer_ == 0)
    RETURN_IF_ERROR(rms_norm(layer.input_norm, buffers_.hidden, buffers_.normed, rows_));
  RETURN_IF_ERROR(kernels::matmul(*stream_, {.x = buffers_.normed.as<float>(),
                                             .weights = layer.qkv.matrix,
                                             .bias = layer.qkv_bias.as<float>(),
                                             .y = qkv,
                                             .x_stride = spec_.hidden,
                                             .y_stride = buffers_.qkv_stride,
                                             .rows = rows_}));
  RETURN_IF_ERROR(kernels::rope_kv_write(*stream_, {.q = qkv,
                                                    .k = qkv + q_width,
                                                    .v = qkv + q_width + kv_width,
                                                    .positions = buffers_.positions.as<int32_t>(),
                                                    .slots = buffers_.slots.as<int64_t>(),
                                                    .cos_table = weights_.rope_cos.as<float>(),
                                                    .sin_table = weights_.rope_sin.as<float>(),
                                                    .cache = kv_.layer(layer_),
                                                    .q_stride = buffers_.qkv_stride,
                                                    .k_stride = buffers_.qkv_stride,
                                                    .v_stride = buffers_.qkv_stride,
                                                    .rows = rows_,
                                                    .heads = a.heads,
                                                    .rotary_dim = spec_.rope.rotary_dim,
                                                    .max_positions = weights_.max_positions,
                                                    .pairing = spec_.rope.pairing}));
  RETURN_IF_ERROR(
      kernels::paged_attention(*stream_, {.q = qkv,
                                          .cache = kv_.layer(layer_),
                                          .block_tables = buffers_.block_tables.as<int32_t>(),
                                          .row_sequence = buffers_.row_sequence.as<int32_t>(),
                                          .row_position = buffers_.positions.as<int32_t>(),
                                          .out = buffers_.attention.as<float>(),
                                          .q_stride = buffers_.qkv_stride,
                                          .out_stride = q_width,
                                          .rows = rows_,
                                          .heads = a.heads,
                                          .max_blocks = batch_->max_blocks,
                                          .sequences = batch_->sequences,
                                          .window = a.window,
                                          .scale = static_cast<float>(a.scale),
                                          .scratch = buffers_.attention_scratch.data(),
                                          .scratch_bytes = buffers_.attention_scratch.bytes()}));
  return kernels::matmul(*stream_, {.x = buffers_.attention.as<float>(),
                                    .weights = layer.o.matrix,
                                    .bias = layer.o_bias.as<float>(),
                                    .y = buffers_.hidden.as<float>(),
                                    .x_stride = q_width,
                                    .y_stride = spec_.hidden,
                                    .rows = rows_,
                                    .accumulate = true});
}

// hidden += down(silu(gate(x)) * up(x)): a dense FFN is one expert with gate 1.
absl::Status ForwardPass::run_dense() {
  const LayerWeights& layer = weights_.layers[layer_];
  // The group list must live until the op has run, which can be after this call.
  kernels::ExpertGroup& group = dense_groups_[layer_];
  group = layer.dense_group;
  group.count = rows_;
  RETURN_IF_ERROR(kernels::expert_ffn(*stream_, {.x = buffers_.normed.as<float>(),
                                                 .out = buffers_.dense_out.data(),
                                                 .groups = &group,
                                                 .num_groups = 1,
                                                 .total = rows_,
                                                 .hidden = spec_.hidden,
                                                 .scratch = buffers_.ffn_scratch.data(),
                                                 .scratch_bytes = buffers_.ffn_scratch.bytes()}));
  return end_layer({.answers = buffers_.dense_out.data(), .top_k = 1});
}

// hidden += the answers; where a layer follows, normed = its norm of that.
absl::Status ForwardPass::end_layer(kernels::CombineArgs args) {
  args.residual = buffers_.hidden.as<float>();
  args.rows = rows_;
  args.hidden = spec_.hidden;
  if (layer_ + 1 < spec_.num_layers()) {
    args.norm_weight = weights_.layers[layer_ + 1].input_norm.as<float>();
    args.normed = buffers_.normed.as<float>();
    args.norm_eps = static_cast<float>(spec_.norm_eps);
  }
  return kernels::combine(*stream_, args);
}

// Router scores in f32, the choice of experts, and its way to the host.
absl::Status ForwardPass::route() {
  const LayerWeights& layer = weights_.layers[layer_];
  const kernels::RouterRule& rule = spec_.layers[layer_].moe->rule;
  RETURN_IF_ERROR(kernels::matmul(*stream_, {.x = buffers_.normed.as<float>(),
                                             .weights = layer.router.matrix,
                                             .y = buffers_.router_logits.as<float>(),
                                             .x_stride = spec_.hidden,
                                             .y_stride = rule.num_experts,
                                             .rows = rows_}));
  RETURN_IF_ERROR(kernels::router_top_k(*stream_, {.logits = buffers_.router_logits.as<float>(),
                                                   .bias = layer.router_bias.as<float>(),
                                                   .experts = buffers_.experts.as<int32_t>(),
                                                   .gates = buffers_.gates.as<float>(),
                                                   .rule = rule,
                                                   .rows = rows_}));
  const size_t bytes = size_t(rows_) * rule.top_k * sizeof(int32_t);
  RETURN_IF_ERROR(
      stream_->copy_to_host(chosen_experts(layer.moe_layer), buffers_.experts.data(), bytes));
  ASSIGN_OR_RETURN(event_, stream_->record(waker_));
  stage_ = Stage::kRouted;
  return absl::OkStatus();
}

absl::StatusOr<bool> ForwardPass::start_experts() {
  if (!event_.ready()) return false;
  RETURN_IF_ERROR(event_.wait_until(absl::InfinitePast()));
  RETURN_IF_ERROR(check_experts());
  const int moe_layer = weights_.layers[layer_].moe_layer;
  RETURN_IF_ERROR(exchange_->begin(*stream_,
                                   {.moe_layer = moe_layer,
                                    .x = buffers_.normed.as<float>(),
                                    .experts = chosen_experts(moe_layer),
                                    .rows = rows_},
                                   waker_));
  ++exchanges_;
  stage_ = Stage::kExperts;
  return true;
}

int32_t* ForwardPass::chosen_experts(size_t moe_layer) {
  return buffers_.host_experts.as<int32_t>() + moe_layer * buffers_.host_experts_stride;
}

absl::Status ForwardPass::check_experts() {
  const kernels::RouterRule& rule = spec_.layers[layer_].moe->rule;
  const int32_t* experts = chosen_experts(weights_.layers[layer_].moe_layer);
  for (int i = 0; i < rows_ * rule.top_k; ++i) {
    if (experts[i] >= 0 && experts[i] < rule.num_experts) continue;
    return absl::InternalError(absl::StrCat("layer ", layer_, ": the router chose expert ",
                                            experts[i], " of ", rule.num_experts));
  }
  return absl::OkStatus();
}

// Of a step that has ended: rows that were parked count when they are computed again.
void ForwardPass::count_experts() {
  if (parked_rows_.size() == static_cast<size_t>(rows_)) return;
  follow_holders();
  use_.begin_step();
  for (int layer = 0; layer < spec_.num_layers(); ++layer) {
    if (!spec_.layers[layer].moe) continue;
    const int moe_layer = weights_.layers[layer].moe_layer,
              top_k = spec_.layers[layer].moe->rule.top_k;
    const int32_t* experts = chosen_experts(moe_layer);
    for (int row = 0; row < rows_; ++row, experts += top_k) {
      if (row >= first_parked_[batch_->row_sequence[row]]) continue;
      for (int k = 0; k < top_k; ++k) use_.count(moe_layer, experts[k]);
    }
  }
  use_.end_step(rows_ - static_cast<int>(parked_rows_.size()));
}

void ForwardPass::follow_holders() {
  if (exchange_ == nullptr || exchange_->holders_version() == holders_version_) return;
  holders_version_ = exchange_->holders_version();
  for (int layer = 0; layer < use_.layers(); ++layer) {
    for (int expert = 0; expert < static_cast<int>(use_.holders(layer).size()); ++expert) {
      use_.set_holder(layer, expert, exchange_->holder_of(layer, expert));
    }
  }
}

absl::StatusOr<bool> ForwardPass::finish_experts() {
  ASSIGN_OR_RETURN(const bool answered, exchange_->poll());
  if (!answered) return false;
  RETURN_IF_ERROR(end_layer({.answers = exchange_->answers(),
                             .answer_dtype = exchange_->answer_dtype(),
                             .gates = buffers_.gates.as<float>(),
                             .top_k = spec_.layers[layer_].moe->rule.top_k}));
  park(exchange_->parked_rows());
  if (parked_rows_.size() == static_cast<size_t>(rows_)) {
    // What the other layers would compute is of no use.
    output_->leave_out();
    RETURN_IF_ERROR(finish());
    return true;
  }
  next_layer();
  return true;
}

// Takes rows that lack an answer out, and the later rows of their sequences: in the next layer they
// attend to what is missing.
void ForwardPass::park(std::span<const int32_t> rows) {
  if (rows.empty()) return;
  for (const int32_t row : rows) {
    int32_t& first = first_parked_[batch_->row_sequence[row]];
    first = std::min(first, row);
  }
  parked_rows_.clear();
  for (int row = 0; row < rows_; ++row) {
    if (row >= first_parked_[batch_->row_sequence[row]]) parked_rows_.push_back(row);
  }
}

uint64_t ForwardPass::cluster_version() const {
  return exchange_ == nullptr ? 0 : exchange_->view_version();
}

void ForwardPass::next_layer() {
  stage_ = ++layer_ < spec_.num_layers() ? Stage::kLayer : Stage::kOutput;
}

absl::Status ForwardPass::run_output() {
  RETURN_IF_ERROR(output_->compute(*stream_, buffers_.hidden.as<float>()));
  RETURN_IF_ERROR(output_->copy_to_host(*stream_));
  return finish();
}

// Also without logits: the batch may be reused only when its copies have run.
absl::Status ForwardPass::finish() {
  ASSIGN_OR_RETURN(event_, stream_->record(waker_));
  stage_ = Stage::kFinishing;
  return absl::OkStatus();
}

absl::Status ForwardPass::rms_norm(const Buffer& weight, const Buffer& x, const Buffer& out,
                                   int rows) {
  return kernels::rms_norm(*stream_, {.x = x.as<float>(),
                                      .weight = weight.as<float>(),
                                      .out = out.as<float>(),
                                      .x_stride = spec_.hidden,
                                      .out_stride = spec_.hidden,
                                      .rows = rows,
                                      .hidden = spec_.hidden,
                                      .eps = static_cast<float>(spec_.norm_eps)});
}

std::span<const float> ForwardPass::logits(int index) const {
  CHECK(stage_ == Stage::kIdle);
  return output_->logits(index);
}

RowLaw ForwardPass::law(int index) const {
  CHECK(stage_ == Stage::kIdle);
  return output_->law(index);
}

absl::Status ForwardPass::copy_block(int from, int to) {
  return kv_.copy_block(*stream_, from, to);
}

}  // namespace brigade::runtime
