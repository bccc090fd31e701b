#include "runtime/model/step_output.h"

#include <algorithm>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/ops/dense.h"

namespace brigade::runtime {

using kernels::Buffer;
using kernels::HostBuffer;

absl::StatusOr<StepOutput> StepOutput::plan(kernels::Device& device, const ModelSpec& spec,
                                            const DeviceWeights& weights,
                                            const StepLimits& limits) {
  const auto rows = static_cast<size_t>(limits.max_logit_rows);
  const auto hidden = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.vocab);
  StepOutput made(spec, weights);
  ASSIGN_OR_RETURN(made.index_, Buffer::allocate(device, rows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(made.gathered_, Buffer::allocate(device, rows * hidden * sizeof(float)));
  ASSIGN_OR_RETURN(made.logits_, Buffer::allocate(device, rows * vocab * sizeof(float)));
  ASSIGN_OR_RETURN(made.host_index_, HostBuffer::allocate(device, made.index_.bytes()));
  ASSIGN_OR_RETURN(made.host_logits_, HostBuffer::allocate(device, made.logits_.bytes()));
  return made;
}

absl::Status StepOutput::begin(kernels::Stream& stream, const StepBatch& batch) {
  rows_ = static_cast<int>(batch.logit_rows.size());
  std::copy(batch.logit_rows.begin(), batch.logit_rows.end(), host_index_.as<int32_t>());
  return stream.copy_to_device(index_.data(), host_index_.data(),
                               batch.logit_rows.size() * sizeof(int32_t));
}

absl::Status StepOutput::compute(kernels::Stream& stream, const float* hidden) {
  if (rows_ == 0) return absl::OkStatus();
  float* gathered = gathered_.as<float>();
  RETURN_IF_ERROR(kernels::gather_rows(stream, {.x = hidden,
                                                .index = index_.as<int32_t>(),
                                                .out = gathered,
                                                .rows = rows_,
                                                .width = spec_->hidden}));
  RETURN_IF_ERROR(kernels::rms_norm(stream, {.x = gathered,
                                             .weight = weights_->final_norm.as<float>(),
                                             .out = gathered,
                                             .x_stride = spec_->hidden,
                                             .out_stride = spec_->hidden,
                                             .rows = rows_,
                                             .hidden = spec_->hidden,
                                             .eps = static_cast<float>(spec_->norm_eps)}));
  return kernels::matmul(stream, {.x = gathered,
                                  .weights = weights_->lm_head.matrix,
                                  .y = logits_.as<float>(),
                                  .x_stride = spec_->hidden,
                                  .y_stride = spec_->vocab,
                                  .rows = rows_});
}

absl::Status StepOutput::copy_to_host(kernels::Stream& stream) {
  if (rows_ == 0) return absl::OkStatus();
  const size_t bytes = size_t(rows_) * spec_->vocab * sizeof(float);
  return stream.copy_to_host(host_logits_.data(), logits_.data(), bytes);
}

void StepOutput::leave_out() {
  std::fill_n(host_logits_.as<float>(), size_t(rows_) * spec_->vocab,
              std::numeric_limits<float>::quiet_NaN());
}

std::span<const float> StepOutput::logits(int index) const {
  CHECK(index >= 0 && index < rows_);
  const auto vocab = static_cast<size_t>(spec_->vocab);
  return {host_logits_.as<float>() + static_cast<size_t>(index) * vocab, vocab};
}

}  // namespace brigade::runtime
