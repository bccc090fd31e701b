#include "runtime/model/step_output.h"

#include <algorithm>
#include <limits>
#include <utility>

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

// Scratch for the policy of many rows would be larger than everything else here: they are taken in
// groups. 128 MiB hold 22 rows of 151936 tokens.
constexpr size_t kMostPolicyScratch = 128 << 20;

int policy_rows(int max_rows, int vocab) {
  const size_t affordable = kMostPolicyScratch / kernels::policy_scratch_bytes(1, vocab);
  return static_cast<int>(std::clamp<size_t>(affordable, 1, static_cast<size_t>(max_rows)));
}

// How many candidates a row may have.
int law_width(int vocab) { return std::min(kMaxLawTokens, vocab); }

}  // namespace

absl::StatusOr<StepOutput> StepOutput::plan(kernels::Device& device, const ModelSpec& spec,
                                            const DeviceWeights& weights,
                                            const StepLimits& limits) {
  const auto rows = static_cast<size_t>(limits.max_logit_rows);
  const auto hidden = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.vocab);
  const size_t cells = rows * static_cast<size_t>(law_width(spec.vocab));
  StepOutput made(spec, weights);
  made.policy_rows_ = policy_rows(limits.max_logit_rows, spec.vocab);
  const std::pair<Buffer*, size_t> buffers[] = {
      {&made.index_, rows * sizeof(int32_t)},
      {&made.gathered_, rows * hidden * sizeof(float)},
      {&made.logits_, rows * vocab * sizeof(float)},
      {&made.best_, rows * sizeof(int32_t)},
      {&made.argmax_scratch_, kernels::argmax_scratch_bytes(limits.max_logit_rows, spec.vocab)},
      {&made.policies_, rows * sizeof(kernels::PolicyRow)},
      {&made.law_counts_, rows * sizeof(int32_t)},
      {&made.law_tokens_, cells * sizeof(int32_t)},
      {&made.law_probabilities_, cells * sizeof(double)},
      {&made.policy_scratch_, kernels::policy_scratch_bytes(made.policy_rows_, spec.vocab)}};
  for (const auto& [buffer, bytes] : buffers) {
    ASSIGN_OR_RETURN(*buffer, Buffer::allocate(device, bytes));
  }
  const std::pair<HostBuffer*, const Buffer*> copies[] = {
      {&made.host_index_, &made.index_},
      {&made.host_policies_, &made.policies_},
      {&made.host_logits_, &made.logits_},
      {&made.host_best_, &made.best_},
      {&made.host_law_counts_, &made.law_counts_},
      {&made.host_law_tokens_, &made.law_tokens_},
      {&made.host_law_probabilities_, &made.law_probabilities_}};
  for (const auto& [copy, buffer] : copies) {
    ASSIGN_OR_RETURN(*copy, HostBuffer::allocate(device, buffer->bytes()));
  }
  made.places_.resize(rows);
  return made;
}

absl::Status StepOutput::begin(kernels::Stream& stream, const StepBatch& batch) {
  rows_ = 0;
  const auto place = [&](RowOutput output) {
    for (size_t index = 0; index < batch.logit_rows.size(); ++index) {
      if (batch.output(static_cast<int>(index)) != output) continue;
      host_index_.as<int32_t>()[rows_] = batch.logit_rows[index];
      places_[index] = rows_++;
    }
  };
  place(RowOutput::kLogits);
  first_best_ = rows_;
  place(RowOutput::kBestToken);
  first_law_ = rows_;
  place(RowOutput::kLaw);
  CHECK(rows_ == static_cast<int>(batch.logit_rows.size()));
  std::copy(batch.policies.begin(), batch.policies.end(), host_policies_.as<kernels::PolicyRow>());
  RETURN_IF_ERROR(stream.copy_to_device(policies_.data(), host_policies_.data(),
                                        batch.policies.size() * sizeof(kernels::PolicyRow)));
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
  const float* best = logits_.as<float>() + size_t(first_best_) * spec_->vocab;
  RETURN_IF_ERROR(kernels::argmax_rows(stream, {.logits = best,
                                                .ids = best_.as<int32_t>(),
                                                .rows = best_rows(),
                                                .vocab = spec_->vocab,
                                                .scratch = argmax_scratch_.data(),
                                                .scratch_bytes = argmax_scratch_.bytes()}));
  return make_laws(stream);
}

absl::Status StepOutput::make_laws(kernels::Stream& stream) {
  const int width = law_width(spec_->vocab);
  for (int first = 0; first < law_rows(); first += policy_rows_) {
    const size_t at = static_cast<size_t>(first);
    RETURN_IF_ERROR(kernels::policy(
        stream, {.logits = logits_.as<float>() + (size_t(first_law_) + at) * spec_->vocab,
                 .settings = policies_.as<kernels::PolicyRow>() + at,
                 .tokens = law_tokens_.as<int32_t>() + at * width,
                 .probabilities = law_probabilities_.as<double>() + at * width,
                 .counts = law_counts_.as<int32_t>() + at,
                 .rows = std::min(policy_rows_, law_rows() - first),
                 .vocab = spec_->vocab,
                 .max_candidates = width,
                 .scratch = policy_scratch_.data(),
                 .scratch_bytes = policy_scratch_.bytes()}));
  }
  return absl::OkStatus();
}

absl::Status StepOutput::copy_to_host(kernels::Stream& stream) {
  const auto copy = [&](const HostBuffer& to, const Buffer& from, int rows, size_t row_bytes) {
    return stream.copy_to_host(to.data(), from.data(), static_cast<size_t>(rows) * row_bytes);
  };
  const size_t width = static_cast<size_t>(law_width(spec_->vocab));
  RETURN_IF_ERROR(copy(host_logits_, logits_, first_best_, spec_->vocab * sizeof(float)));
  RETURN_IF_ERROR(copy(host_best_, best_, best_rows(), sizeof(int32_t)));
  RETURN_IF_ERROR(copy(host_law_counts_, law_counts_, law_rows(), sizeof(int32_t)));
  RETURN_IF_ERROR(copy(host_law_tokens_, law_tokens_, law_rows(), width * sizeof(int32_t)));
  return copy(host_law_probabilities_, law_probabilities_, law_rows(), width * sizeof(double));
}

void StepOutput::leave_out() {
  std::fill_n(host_logits_.as<float>(), size_t(first_best_) * spec_->vocab,
              std::numeric_limits<float>::quiet_NaN());
  std::fill_n(host_best_.as<int32_t>(), best_rows(), kNoToken);
  std::fill_n(host_law_counts_.as<int32_t>(), law_rows(), 0);
}

absl::Status StepOutput::check() const {
  const auto is_token = [&](int32_t token) { return token >= 0 && token < spec_->vocab; };
  for (int row = 0; row < best_rows(); ++row) {
    const int32_t token = host_best_.as<int32_t>()[row];
    if (token == kNoToken || is_token(token)) continue;
    return absl::InternalError(
        absl::StrCat("the best of ", spec_->vocab, " logits is said to be token ", token));
  }
  const int width = law_width(spec_->vocab);
  for (int row = 0; row < law_rows(); ++row) {
    const int32_t count = host_law_counts_.as<int32_t>()[row];
    const int32_t* tokens = host_law_tokens_.as<int32_t>() + row * width;
    if (count >= 0 && count <= width && std::all_of(tokens, tokens + count, is_token)) continue;
    return absl::InternalError(
        absl::StrCat("a law is said to have ", count, " of ", spec_->vocab, " tokens"));
  }
  return absl::OkStatus();
}

int StepOutput::place_of(int index) const {
  CHECK(index >= 0 && index < rows_);
  return places_[static_cast<size_t>(index)];
}

std::span<const float> StepOutput::logits(int index) const {
  const int place = place_of(index);
  CHECK(place < first_best_);
  const auto vocab = static_cast<size_t>(spec_->vocab);
  return {host_logits_.as<float>() + static_cast<size_t>(place) * vocab, vocab};
}

RowLaw StepOutput::law(int index) const {
  const int place = place_of(index);
  CHECK(place >= first_best_);
  if (place < first_law_) {
    const int32_t& token = host_best_.as<int32_t>()[place - first_best_];
    if (token == kNoToken) return {};
    return {.tokens = {&token, 1}, .probabilities = {&kCertain, 1}};
  }
  const size_t row = static_cast<size_t>(place - first_law_);
  const size_t first = row * static_cast<size_t>(law_width(spec_->vocab));
  const auto count = static_cast<size_t>(host_law_counts_.as<int32_t>()[row]);
  return {.tokens = {host_law_tokens_.as<int32_t>() + first, count},
          .probabilities = {host_law_probabilities_.as<double>() + first, count}};
}

}  // namespace brigade::runtime
