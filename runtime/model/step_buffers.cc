#include "runtime/model/step_buffers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/moe.h"

namespace brigade::runtime {
namespace {

using kernels::Buffer;

struct Widths {
  size_t top_k = 0, experts = 0, moe_layers = 0;
  int dense_ffn = 0;
};

Widths widths(const ModelSpec& spec) {
  Widths widest;
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.moe) {
      widest.dense_ffn = std::max(widest.dense_ffn, layer.dense_ffn);
      continue;
    }
    ++widest.moe_layers;
    widest.top_k = std::max(widest.top_k, static_cast<size_t>(layer.moe->rule.top_k));
    widest.experts = std::max(widest.experts, static_cast<size_t>(layer.moe->rule.num_experts));
  }
  return widest;
}

// Allocates one buffer after the other until one fails.
class Planner {
 public:
  explicit Planner(kernels::Device& device) : device_(device) {}
  void add(Buffer& buffer, size_t bytes) {
    if (!status_.ok() || bytes == 0) return;
    absl::StatusOr<Buffer> made = Buffer::allocate(device_, bytes);
    if (made.ok()) {
      buffer = *std::move(made);
    } else {
      status_ = made.status();
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  kernels::Device& device_;
  absl::Status status_;
};

template <typename T>
absl::Status copy(kernels::Stream& stream, const Buffer& to, const std::vector<T>& from) {
  return stream.copy_to_device(to.data(), from.data(), from.size() * sizeof(T));
}

}  // namespace

absl::StatusOr<StepBuffers> StepBuffers::plan(kernels::Device& device, const ModelSpec& spec,
                                              const StepLimits& limits) {
  if (std::min({limits.max_rows, limits.max_sequences, limits.max_blocks, limits.max_logit_rows}) <
      1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step limits: rows ", limits.max_rows, ", sequences ", limits.max_sequences, ", blocks ",
        limits.max_blocks, " and logit rows ", limits.max_logit_rows, " must each be at least 1"));
  }
  const AttentionSpec& a = spec.attention;
  const Widths width = widths(spec);
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto logit_rows = static_cast<size_t>(limits.max_logit_rows);
  const auto hidden = static_cast<size_t>(spec.hidden), vocab = static_cast<size_t>(spec.vocab);
  StepBuffers made;
  made.qkv_stride = int64_t{a.heads + 2 * a.kv_heads} * a.head_dim;
  Planner planner(device);
  for (Buffer* buffer : {&made.tokens, &made.positions, &made.row_sequence}) {
    planner.add(*buffer, rows * sizeof(int32_t));
  }
  planner.add(made.slots, rows * sizeof(int64_t));
  planner.add(made.block_tables,
              size_t(limits.max_sequences) * limits.max_blocks * sizeof(int32_t));
  planner.add(made.logit_rows, logit_rows * sizeof(int32_t));
  planner.add(made.hidden, rows * hidden * sizeof(float));
  planner.add(made.normed, rows * hidden * sizeof(float));
  planner.add(made.qkv, rows * made.qkv_stride * sizeof(float));
  planner.add(made.attention, rows * a.heads * a.head_dim * sizeof(float));
  planner.add(made.router_logits, rows * width.experts * sizeof(float));
  planner.add(made.gates, rows * width.top_k * sizeof(float));
  planner.add(made.experts, rows * width.top_k * sizeof(int32_t));
  planner.add(made.gathered, logit_rows * hidden * sizeof(float));
  planner.add(made.logits, logit_rows * vocab * sizeof(float));
  planner.add(
      made.attention_scratch,
      kernels::attention_scratch_bytes(device, limits.max_rows, a.heads, a.head_dim));
  if (width.dense_ffn > 0) {
    planner.add(made.dense_out, rows * hidden * sizeof(float));
    planner.add(made.ffn_scratch,
                kernels::expert_ffn_scratch_bytes(device, limits.max_rows, spec.hidden,
                                                  width.dense_ffn));
  }
  RETURN_IF_ERROR(planner.status());
  made.host_experts_stride = rows * width.top_k;
  made.host_experts.resize(width.moe_layers * made.host_experts_stride);
  made.host_logits.resize(logit_rows * vocab);
  return made;
}

absl::Status StepBuffers::copy_batch(kernels::Stream& stream, const StepBatch& batch) {
  RETURN_IF_ERROR(copy(stream, tokens, batch.tokens));
  RETURN_IF_ERROR(copy(stream, positions, batch.positions));
  RETURN_IF_ERROR(copy(stream, row_sequence, batch.row_sequence));
  RETURN_IF_ERROR(copy(stream, slots, batch.slots));
  const size_t table = size_t(batch.sequences) * batch.max_blocks * sizeof(int32_t);
  RETURN_IF_ERROR(stream.copy_to_device(block_tables.data(), batch.block_tables.data(), table));
  if (batch.logit_rows.empty()) return absl::OkStatus();
  return copy(stream, logit_rows, batch.logit_rows);
}

}  // namespace brigade::runtime
