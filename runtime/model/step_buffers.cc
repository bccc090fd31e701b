#include "runtime/model/step_buffers.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/moe.h"

namespace brigade::runtime {
namespace {

using kernels::Buffer;
using kernels::HostBuffer;

constexpr size_t kPiece = 64;  // of the staging memory
constexpr size_t kIndexArrays = 5;

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

// Copies arrays to the device, by way of `staging` where there is one.
class IndexCopies {
 public:
  IndexCopies(kernels::Stream& stream, const HostBuffer& staging)
      : stream_(stream), staging_(staging) {}
  template <typename T>
  absl::Status add(const Buffer& to, const std::vector<T>& from, size_t count) {
    const void* source = from.data();
    const size_t bytes = count * sizeof(T);
    if (staging_.bytes() > 0 && bytes > 0) {
      source = std::memcpy(staging_.as<std::byte>() + used_, source, bytes);
      used_ += (bytes + kPiece - 1) / kPiece * kPiece;
    }
    return stream_.copy_to_device(to.data(), source, bytes);
  }

 private:
  kernels::Stream& stream_;
  const HostBuffer& staging_;
  size_t used_ = 0;
};

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
  const auto hidden = static_cast<size_t>(spec.hidden);
  StepBuffers made;
  made.qkv_stride = int64_t{a.heads + 2 * a.kv_heads} * a.head_dim;
  Planner planner(device);
  for (Buffer* buffer : {&made.tokens, &made.positions, &made.row_sequence}) {
    planner.add(*buffer, rows * sizeof(int32_t));
  }
  planner.add(made.slots, rows * sizeof(int64_t));
  planner.add(made.block_tables,
              size_t(limits.max_sequences) * limits.max_blocks * sizeof(int32_t));
  planner.add(made.hidden, rows * hidden * sizeof(float));
  planner.add(made.normed, rows * hidden * sizeof(float));
  planner.add(made.qkv, rows * made.qkv_stride * sizeof(float));
  planner.add(made.attention, rows * a.heads * a.head_dim * sizeof(float));
  planner.add(made.router_logits, rows * width.experts * sizeof(float));
  planner.add(made.gates, rows * width.top_k * sizeof(float));
  planner.add(made.experts, rows * width.top_k * sizeof(int32_t));
  planner.add(made.attention_scratch,
              kernels::attention_scratch_bytes(device, limits.max_rows, a.heads, a.head_dim));
  if (width.dense_ffn > 0) {
    planner.add(made.dense_out, rows * hidden * sizeof(float));
    planner.add(made.ffn_scratch, kernels::expert_ffn_scratch_bytes(device, limits.max_rows,
                                                                    spec.hidden, width.dense_ffn));
  }
  RETURN_IF_ERROR(planner.status());
  made.host_experts_stride = rows * width.top_k;
  ASSIGN_OR_RETURN(
      made.host_experts,
      HostBuffer::allocate(device, width.moe_layers * made.host_experts_stride * sizeof(int32_t)));
  if (device.kind() == kernels::DeviceKind::kCpu) return made;
  size_t index_bytes = kIndexArrays * kPiece;
  for (const Buffer* buffer :
       {&made.tokens, &made.positions, &made.row_sequence, &made.slots, &made.block_tables}) {
    index_bytes += buffer->bytes();
  }
  ASSIGN_OR_RETURN(made.host_indices, HostBuffer::allocate(device, index_bytes));
  return made;
}

absl::Status StepBuffers::copy_batch(kernels::Stream& stream, const StepBatch& batch) {
  IndexCopies copies(stream, host_indices);
  RETURN_IF_ERROR(copies.add(tokens, batch.tokens, batch.tokens.size()));
  RETURN_IF_ERROR(copies.add(positions, batch.positions, batch.positions.size()));
  RETURN_IF_ERROR(copies.add(row_sequence, batch.row_sequence, batch.row_sequence.size()));
  RETURN_IF_ERROR(copies.add(slots, batch.slots, batch.slots.size()));
  return copies.add(block_tables, batch.block_tables, size_t(batch.sequences) * batch.max_blocks);
}

}  // namespace brigade::runtime
