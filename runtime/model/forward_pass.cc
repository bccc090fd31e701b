#include "runtime/model/forward_pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/model/step_batch_check.h"

namespace brigade::runtime {

absl::StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::create(
    kernels::Device& device, const ModelSpec& spec, const DeviceWeights& weights, const KvCache& kv,
    std::unique_ptr<expert_parallel::Exchange> exchange, const StepLimits& limits,
    const StepGraphOptions& graphs) {
  std::unique_ptr<ForwardPass> pass(
      new ForwardPass(spec, weights, kv, std::move(exchange), limits));
  CHECK(pass->use_.layers() == 0 || pass->exchange_ != nullptr);
  ASSIGN_OR_RETURN(pass->stream_, device.create_stream());
  ASSIGN_OR_RETURN(pass->buffers_, StepBuffers::plan(device, spec, limits));
  ASSIGN_OR_RETURN(StepOutput output, StepOutput::plan(device, spec, weights, limits));
  pass->output_.emplace(std::move(output));
  if (graphs.on && device.has_graphs()) {
    pass->graphs_.emplace(*pass->stream_, pass->segments_.count(), graphs);
  }
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
      segments_(spec, weights, kv, buffers_),
      first_parked_(static_cast<size_t>(std::max(limits.max_sequences, 0)), limits.max_rows) {
  parked_rows_.reserve(static_cast<size_t>(std::max(limits.max_rows, 0)));
  for (const LayerSpec& layer : spec.layers) {
    if (layer.moe) use_.add_layer(layer.moe->rule.num_experts);
  }
}

ForwardPass::~ForwardPass() {
  // Nothing may still run on the buffers that go now. There is nobody to tell of an error.
  if (stream_ != nullptr) stream_->synchronize(absl::Now() + absl::Seconds(5)).IgnoreError();
}

absl::Status ForwardPass::begin(const StepBatch& batch, kernels::Waker* waker) {
  if (stage_ != Stage::kIdle) return absl::FailedPreconditionError("a step is in progress");
  RETURN_IF_ERROR(check_batch(batch, {.limits = limits_,
                                      .vocab = spec_.vocab,
                                      .max_positions = weights_.max_positions,
                                      .kv = kv_.geometry()}));
  batch_ = &batch;
  waker_ = waker;
  shape_ = {.rows = batch.rows(),
            .sequences = batch.sequences,
            .max_blocks = batch.max_blocks};
  segment_ = 0;
  answers_ = {};
  if (!parked_rows_.empty())
    std::fill(first_parked_.begin(), first_parked_.end(), limits_.max_rows);
  parked_rows_.clear();
  RETURN_IF_ERROR(buffers_.copy_batch(*stream_, batch));
  RETURN_IF_ERROR(output_->begin(*stream_, batch));
  shape_.logit_rows = output_->rows();
  shape_.copied_rows = output_->copied_rows();
  shape_.law_rows = output_->law_rows();
  if (graphs_) graphs_->begin(shape_);
  stage_ = Stage::kSegment;
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
    case Stage::kSegment:
      RETURN_IF_ERROR(run_segment());
      return true;
    case Stage::kRouted:
      return start_experts();
    case Stage::kExperts:
      return finish_experts();
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

absl::Status ForwardPass::run_segment() {
  const bool last = segment_ + 1 == segments_.count();
  const auto enqueue = [&]() -> absl::Status {
    RETURN_IF_ERROR(segments_.enqueue(*stream_, segment_, shape_, answers_));
    return last ? output_->compute(*stream_, buffers_.hidden.as<float>()) : absl::OkStatus();
  };
  RETURN_IF_ERROR(graphs_ ? graphs_->run(segment_, answers_, enqueue) : enqueue());
  if (last) {
    RETURN_IF_ERROR(output_->copy_to_host(*stream_));
    return finish();
  }
  ASSIGN_OR_RETURN(event_, stream_->record(waker_));
  stage_ = Stage::kRouted;
  return absl::OkStatus();
}

absl::StatusOr<bool> ForwardPass::start_experts() {
  if (!event_.ready()) return false;
  RETURN_IF_ERROR(event_.wait_until(absl::InfinitePast()));
  const int layer = segments_.routed_layer(segment_);
  RETURN_IF_ERROR(check_experts(layer));
  const int moe_layer = weights_.layers[layer].moe_layer;
  RETURN_IF_ERROR(exchange_->begin(*stream_,
                                   {.moe_layer = moe_layer,
                                    .x = buffers_.normed.as<float>(),
                                    .experts = segments_.chosen_experts(moe_layer),
                                    .rows = shape_.rows},
                                   waker_));
  ++exchanges_;
  stage_ = Stage::kExperts;
  return true;
}

absl::Status ForwardPass::check_experts(int layer) const {
  const kernels::RouterRule& rule = spec_.layers[layer].moe->rule;
  const int32_t* experts = segments_.chosen_experts(weights_.layers[layer].moe_layer);
  for (int i = 0; i < shape_.rows * rule.top_k; ++i) {
    if (experts[i] >= 0 && experts[i] < rule.num_experts) continue;
    return absl::InternalError(absl::StrCat("layer ", layer, ": the router chose expert ",
                                            experts[i], " of ", rule.num_experts));
  }
  return absl::OkStatus();
}

// Of a step that has ended: rows that were parked count when they are computed again.
void ForwardPass::count_experts() {
  if (parked_rows_.size() == static_cast<size_t>(shape_.rows)) return;
  follow_holders();
  use_.begin_step();
  for (int layer = 0; layer < spec_.num_layers(); ++layer) {
    if (!spec_.layers[layer].moe) continue;
    const int moe_layer = weights_.layers[layer].moe_layer,
              top_k = spec_.layers[layer].moe->rule.top_k;
    const int32_t* experts = segments_.chosen_experts(moe_layer);
    for (int row = 0; row < shape_.rows; ++row, experts += top_k) {
      if (row >= first_parked_[batch_->row_sequence[row]]) continue;
      for (int k = 0; k < top_k; ++k) use_.count(moe_layer, experts[k]);
    }
  }
  use_.end_step(shape_.rows - static_cast<int>(parked_rows_.size()));
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
  park(exchange_->parked_rows());
  if (parked_rows_.size() == static_cast<size_t>(shape_.rows)) {
    // What the other layers would compute is of no use.
    output_->leave_out();
    RETURN_IF_ERROR(finish());
    return true;
  }
  answers_ = {exchange_->answers(), exchange_->answer_dtype()};
  ++segment_;
  stage_ = Stage::kSegment;
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
  for (int row = 0; row < shape_.rows; ++row) {
    if (row >= first_parked_[batch_->row_sequence[row]]) parked_rows_.push_back(row);
  }
}

uint64_t ForwardPass::cluster_version() const {
  return exchange_ == nullptr ? 0 : exchange_->view_version();
}

// Also without logits: the batch may be reused only when its copies have run.
absl::Status ForwardPass::finish() {
  ASSIGN_OR_RETURN(event_, stream_->record(waker_));
  stage_ = Stage::kFinishing;
  return absl::OkStatus();
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
