#include "runtime/model/step_output.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/sampling.h"

namespace brigade::runtime {
namespace {

using kernels::Buffer;
using kernels::HostBuffer;
using kernels::kNoToken;

constexpr double kCertain = 1;

}  // namespace

absl::StatusOr<StepOutput> StepOutput::plan(kernels::Device& device, const ModelSpec& spec,
                                            const DeviceWeights& weights,
                                            const StepLimits& limits) {
  const auto rows = static_cast<size_t>(limits.max_logit_rows);
  const auto hidden = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.vocab);
  StepOutput made(spec, weights);
  ASSIGN_OR_RETURN(made.index_, Buffer::allocate(device, rows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(made.gathered_, Buffer::allocate(device, rows * hidden * sizeof(float)));
  ASSIGN_OR_RETURN(made.logits_, Buffer::allocate(device, rows * vocab * sizeof(float)));
  ASSIGN_OR_RETURN(made.best_, Buffer::allocate(device, rows * sizeof(int32_t)));
  ASSIGN_OR_RETURN(
      made.argmax_scratch_,
      Buffer::allocate(device, kernels::argmax_scratch_bytes(limits.max_logit_rows, spec.vocab)));
  ASSIGN_OR_RETURN(made.host_index_, HostBuffer::allocate(device, made.index_.bytes()));
  ASSIGN_OR_RETURN(made.host_logits_, HostBuffer::allocate(device, made.logits_.bytes()));
  ASSIGN_OR_RETURN(made.host_best_, HostBuffer::allocate(device, made.best_.bytes()));
  made.places_.resize(rows);
  return made;
}

absl::Status StepOutput::begin(kernels::Stream& stream, const StepBatch& batch) {
  rows_ = 0;
  for (const RowOutput output : {RowOutput::kLogits, RowOutput::kBestToken}) {
    for (size_t index = 0; index < batch.logit_rows.size(); ++index) {
      if (batch.output(static_cast<int>(index)) != output) continue;
      host_index_.as<int32_t>()[rows_] = batch.logit_rows[index];
      places_[index] = rows_++;
    }
    if (output == RowOutput::kLogits) copied_rows_ = rows_;
  }
  CHECK(rows_ == static_cast<int>(batch.logit_rows.size()));
  return stream.copy_to_device(index_.data(), host_index_.data(), size_t(rows_) * sizeof(int32_t));
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
  RETURN_IF_ERROR(kernels::matmul(stream, {.x = gathered,
                                           .weights = weights_->lm_head.matrix,
                                           .y = logits_.as<float>(),
                                           .x_stride = spec_->hidden,
                                           .y_stride = spec_->vocab,
                                           .rows = rows_}));
  const float* others = logits_.as<float>() + size_t(copied_rows_) * spec_->vocab;
  return kernels::argmax_rows(stream, {.logits = others,
                                       .ids = best_.as<int32_t>(),
                                       .rows = rows_ - copied_rows_,
                                       .vocab = spec_->vocab,
                                       .scratch = argmax_scratch_.data(),
                                       .scratch_bytes = argmax_scratch_.bytes()});
}

absl::Status StepOutput::copy_to_host(kernels::Stream& stream) {
  RETURN_IF_ERROR(stream.copy_to_host(host_logits_.data(), logits_.data(),
                                      size_t(copied_rows_) * spec_->vocab * sizeof(float)));
  return stream.copy_to_host(host_best_.data(), best_.data(), host_best().size_bytes());
}

void StepOutput::leave_out() {
  std::fill_n(host_logits_.as<float>(), size_t(copied_rows_) * spec_->vocab,
              std::numeric_limits<float>::quiet_NaN());
  std::fill(host_best().begin(), host_best().end(), kNoToken);
}

std::span<int32_t> StepOutput::host_best() const {
  return {host_best_.as<int32_t>(), static_cast<size_t>(rows_ - copied_rows_)};
}

absl::Status StepOutput::check() const {
  for (const int32_t token : host_best()) {
    if (token == kNoToken || (token >= 0 && token < spec_->vocab)) continue;
    return absl::InternalError(
        absl::StrCat("the best of ", spec_->vocab, " logits is said to be token ", token));
  }
  return absl::OkStatus();
}

int StepOutput::place_of(int index) const {
  CHECK(index >= 0 && index < rows_);
  return places_[static_cast<size_t>(index)];
}

std::span<const float> StepOutput::logits(int index) const {
  const int place = place_of(index);
  CHECK(place < copied_rows_);
  const auto vocab = static_cast<size_t>(spec_->vocab);
  return {host_logits_.as<float>() + static_cast<size_t>(place) * vocab, vocab};
}

RowLaw StepOutput::law(int index) const {
  const int place = place_of(index);
  CHECK(place >= copied_rows_);
  const int32_t& token = host_best()[static_cast<size_t>(place - copied_rows_)];
  if (token == kNoToken) return {};
  return {.tokens = {&token, 1}, .probabilities = {&kCertain, 1}};
}

}  // namespace brigade::runtime
