#include "tests/bench/layer_stack.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::bench {
namespace {

using kernels::Buffer;
using kernels::HostBuffer;

constexpr size_t kPatternBytes = size_t{1} << 20;
constexpr absl::Duration kDeadline = absl::Seconds(60);

}  // namespace

absl::StatusOr<std::unique_ptr<LayerStack>> LayerStack::create(kernels::Device& device,
                                                               const LayerShape& shape, int layers,
                                                               int max_rows) {
  auto stack = std::unique_ptr<LayerStack>(new LayerStack(device, shape));
  ASSIGN_OR_RETURN(stack->stream_, device.create_stream());
  RETURN_IF_ERROR(stack->make_pattern());
  stack->layers_.resize(layers);
  for (Layer& layer : stack->layers_) RETURN_IF_ERROR(stack->make_layer(layer));
  RETURN_IF_ERROR(stack->make_buffers(max_rows));
  RETURN_IF_ERROR(stack->synchronize());
  return stack;
}

LayerStack::LayerStack(kernels::Device& device, const LayerShape& shape)
    : device_(device),
      shape_(shape),
      format_(kernels::weight_format(kernels::DType::kBF16, kernels::weight_layout(device))) {}

// Numbers of +-0.008 to 0.03, as bf16 and as f32.
absl::Status LayerStack::make_pattern() {
  ASSIGN_OR_RETURN(pattern_, HostBuffer::allocate(device_, kPatternBytes));
  std::mt19937 generator(1);
  for (size_t i = 0; i < kPatternBytes / sizeof(uint32_t); ++i) {
    pattern_.as<uint32_t>()[i] = 0x3C003C00u | (static_cast<uint32_t>(generator()) & 0x80FF80FFu);
  }
  return absl::OkStatus();
}

// The pattern once, then what is there again and again.
absl::StatusOr<Buffer> LayerStack::filled(size_t bytes) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(device_, bytes));
  auto* const to = buffer.as<uint8_t>();
  size_t there = std::min(bytes, kPatternBytes);
  RETURN_IF_ERROR(stream_->copy_to_device(to, pattern_.data(), there));
  while (there < bytes) {
    const size_t more = std::min(there, bytes - there);
    RETURN_IF_ERROR(stream_->copy_on_device(to + there, to, more));
    there += more;
  }
  return buffer;
}

absl::StatusOr<Buffer> LayerStack::indices(const std::vector<int32_t>& values) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(device_, values.size() * sizeof(int32_t)));
  RETURN_IF_ERROR(stream_->copy_to_device(buffer.data(), values.data(), buffer.bytes()));
  RETURN_IF_ERROR(synchronize());
  return buffer;
}

absl::Status LayerStack::make_layer(Layer& layer) {
  const LayerShape& s = shape_;
  const int64_t q_width = int64_t{s.heads} * s.head_dim;
  const int64_t qkv_width = q_width + 2 * int64_t{s.kv_heads} * s.head_dim;
  ASSIGN_OR_RETURN(layer.qkv, filled(kernels::packed_bytes(format_, qkv_width, s.hidden)));
  ASSIGN_OR_RETURN(layer.o, filled(kernels::packed_bytes(format_, s.hidden, q_width)));
  ASSIGN_OR_RETURN(layer.router, filled(kernels::packed_bytes(format_, s.experts, s.hidden)));
  ASSIGN_OR_RETURN(layer.norm, filled(sizeof(float) * s.hidden));
  for (int e = 0; e < s.experts; ++e) {
    ASSIGN_OR_RETURN(Buffer gate_up, filled(2 * kernels::packed_bytes(format_, s.ffn, s.hidden)));
    ASSIGN_OR_RETURN(Buffer down, filled(kernels::packed_bytes(format_, s.hidden, s.ffn)));
    layer.gate_up.push_back(std::move(gate_up));
    layer.down.push_back(std::move(down));
  }
  const size_t block = size_t{2} * s.kv_heads * s.block_size * s.head_dim * 2;
  ASSIGN_OR_RETURN(layer.cache, filled(block * s.sequences * (s.context / s.block_size)));
  return absl::OkStatus();
}

absl::Status LayerStack::make_buffers(int max_rows) {
  const LayerShape& s = shape_;
  CHECK(max_rows <= s.context);
  max_rows_ = max_rows;
  const size_t rows = max_rows, hidden = s.hidden;
  const size_t qkv_width = size_t(s.heads + 2 * s.kv_heads) * s.head_dim;
  const auto floats = [&](Buffer& to, size_t count) -> absl::Status {
    ASSIGN_OR_RETURN(to, filled(count * sizeof(float)));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(floats(hidden_, rows * hidden));
  RETURN_IF_ERROR(floats(normed_, rows * hidden));
  RETURN_IF_ERROR(floats(qkv_, rows * qkv_width));
  RETURN_IF_ERROR(floats(attention_, rows * s.heads * s.head_dim));
  RETURN_IF_ERROR(floats(router_logits_, rows * s.experts));
  RETURN_IF_ERROR(floats(gates_, rows * s.top_k));
  RETURN_IF_ERROR(floats(experts_, rows * s.top_k));
  RETURN_IF_ERROR(floats(answers_, rows * s.top_k * hidden));
  RETURN_IF_ERROR(floats(logits_, rows * s.vocab));
  ASSIGN_OR_RETURN(output_, filled(kernels::packed_bytes(format_, s.vocab, s.hidden)));
  std::vector<int32_t> blocks(size_t(s.sequences) * (s.context / s.block_size));
  std::iota(blocks.begin(), blocks.end(), 0);
  ASSIGN_OR_RETURN(tables_, indices(blocks));
  std::vector<int32_t> sequences(s.sequences), prompt(rows);
  std::iota(sequences.begin(), sequences.end(), 0);
  std::iota(prompt.begin(), prompt.end(), s.context - max_rows);
  ASSIGN_OR_RETURN(decode_positions_,
                   indices(std::vector<int32_t>(sequences.size(), s.context - 1)));
  ASSIGN_OR_RETURN(decode_sequences_, indices(sequences));
  ASSIGN_OR_RETURN(prompt_positions_, indices(prompt));
  ASSIGN_OR_RETURN(prompt_sequences_, indices(std::vector<int32_t>(rows, 0)));
  ASSIGN_OR_RETURN(attention_scratch_, filled(kernels::attention_scratch_bytes(
                                           device_, max_rows, s.heads, s.head_dim)));
  ASSIGN_OR_RETURN(ffn_scratch_, filled(kernels::expert_ffn_scratch_bytes(
                                     device_, max_rows * s.top_k, s.hidden, s.ffn)));
  const size_t index_bytes = rows * s.top_k * sizeof(int32_t);
  for (HostBuffer* host : {&host_experts_, &host_rows_, &host_slots_}) {
    ASSIGN_OR_RETURN(*host, HostBuffer::allocate(device_, index_bytes));
  }
  ASSIGN_OR_RETURN(row_index_, Buffer::allocate(device_, index_bytes));
  ASSIGN_OR_RETURN(out_index_, Buffer::allocate(device_, index_bytes));
  groups_.resize(layers_.size());
  for (auto& groups : groups_) groups.resize(s.experts);
  return absl::OkStatus();
}

kernels::PackedMatrix LayerStack::matrix(const Buffer& buffer, int64_t outputs, int64_t k) const {
  return {buffer.data(), format_, outputs, k};
}

absl::Status LayerStack::norm(int layer, int rows) {
  return kernels::rms_norm(*stream_, {.x = hidden_.as<float>(),
                                      .weight = layers_[layer].norm.as<float>(),
                                      .out = normed_.as<float>(),
                                      .x_stride = shape_.hidden,
                                      .out_stride = shape_.hidden,
                                      .rows = rows,
                                      .hidden = shape_.hidden,
                                      .eps = 1e-5f});
}

absl::Status LayerStack::qkv(int layer, int rows) {
  const int64_t width = int64_t{shape_.heads + 2 * shape_.kv_heads} * shape_.head_dim;
  return kernels::matmul(*stream_, {.x = normed_.as<float>(),
                                    .weights = matrix(layers_[layer].qkv, width, shape_.hidden),
                                    .y = qkv_.as<float>(),
                                    .x_stride = shape_.hidden,
                                    .y_stride = width,
                                    .rows = rows});
}

absl::Status LayerStack::attention(int layer, int rows) {
  const LayerShape& s = shape_;
  const bool decode = is_decode(rows);
  kernels::KvLayerView cache;
  cache.data = layers_[layer].cache.data();
  cache.dtype = kernels::DType::kBF16;
  cache.num_blocks = s.sequences * (s.context / s.block_size);
  cache.block_size = s.block_size;
  cache.kv_heads = s.kv_heads;
  cache.head_dim = s.head_dim;
  cache.block_stride_bytes = static_cast<int64_t>(cache.layer_bytes());
  const int64_t q_width = int64_t{s.heads} * s.head_dim;
  const int32_t* const prompt = prompt_positions_.as<int32_t>() + max_rows_ - rows;
  return kernels::paged_attention(
      *stream_, {.q = qkv_.as<float>(),
                 .cache = cache,
                 .block_tables = tables_.as<int32_t>(),
                 .row_sequence = (decode ? decode_sequences_ : prompt_sequences_).as<int32_t>(),
                 .row_position = decode ? decode_positions_.as<int32_t>() : prompt,
                 .out = attention_.as<float>(),
                 .q_stride = q_width + 2 * int64_t{s.kv_heads} * s.head_dim,
                 .out_stride = q_width,
                 .rows = rows,
                 .heads = s.heads,
                 .max_blocks = s.context / s.block_size,
                 .sequences = decode ? rows : 1,
                 .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
                 .scratch = attention_scratch_.data(),
                 .scratch_bytes = attention_scratch_.bytes()});
}

absl::Status LayerStack::router(int layer, int rows) {
  RETURN_IF_ERROR(kernels::matmul(
      *stream_, {.x = normed_.as<float>(),
                 .weights = matrix(layers_[layer].router, shape_.experts, shape_.hidden),
                 .y = router_logits_.as<float>(),
                 .x_stride = shape_.hidden,
                 .y_stride = shape_.experts,
                 .rows = rows}));
  kernels::RouterRule rule;
  rule.num_experts = shape_.experts;
  rule.top_k = shape_.top_k;
  rule.renormalize = true;
  return kernels::router_top_k(*stream_, {.logits = router_logits_.as<float>(),
                                          .experts = experts_.as<int32_t>(),
                                          .gates = gates_.as<float>(),
                                          .rule = rule,
                                          .rows = rows});
}

// Terms grouped by expert, as the exchange makes them from what the router chose.
absl::Status LayerStack::plan_experts(int rows) {
  const LayerShape& s = shape_;
  RETURN_IF_ERROR(synchronize());  // copies of the plan before this one
  planned_rows_ = rows;
  int term = 0;
  for (int e = 0; e < s.experts; ++e) {
    const int first = term;
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < s.top_k; ++k) {
        if ((r + k) % s.experts != e) continue;
        host_rows_.as<int32_t>()[term] = r;
        host_slots_.as<int32_t>()[term++] = r * s.top_k + k;
      }
    }
    for (int layer = 0; layer < num_layers(); ++layer) {
      kernels::ExpertWeights weights;
      weights.gate_up =
          matrix(layers_[layer].gate_up[e], kernels::gate_up_outputs(format_, s.ffn), s.hidden);
      weights.down = matrix(layers_[layer].down[e], s.hidden, s.ffn);
      weights.ffn = s.ffn;
      groups_[layer][e] = {weights, first, term - first};
    }
  }
  return absl::OkStatus();
}

absl::Status LayerStack::experts(int layer, int rows) {
  const LayerShape& s = shape_;
  if (rows != planned_rows_) RETURN_IF_ERROR(plan_experts(rows));
  const int terms = rows * s.top_k;
  const size_t bytes = sizeof(int32_t) * terms;
  RETURN_IF_ERROR(stream_->copy_to_device(row_index_.data(), host_rows_.data(), bytes));
  RETURN_IF_ERROR(stream_->copy_to_device(out_index_.data(), host_slots_.data(), bytes));
  return kernels::expert_ffn(*stream_, {.x = normed_.as<float>(),
                                        .row_index = row_index_.as<int32_t>(),
                                        .out_index = out_index_.as<int32_t>(),
                                        .out = answers_.data(),
                                        .groups = groups_[layer].data(),
                                        .num_groups = s.experts,
                                        .total = terms,
                                        .hidden = s.hidden,
                                        .scratch = ffn_scratch_.data(),
                                        .scratch_bytes = ffn_scratch_.bytes()});
}

absl::Status LayerStack::combine(int rows) {
  return kernels::combine(*stream_, {.answers = answers_.data(),
                                     .gates = gates_.as<float>(),
                                     .residual = hidden_.as<float>(),
                                     .rows = rows,
                                     .top_k = shape_.top_k,
                                     .hidden = shape_.hidden});
}

absl::Status LayerStack::layers(int rows) {
  const LayerShape& s = shape_;
  const int64_t q_width = int64_t{s.heads} * s.head_dim;
  for (int i = 0; i < num_layers(); ++i) {
    RETURN_IF_ERROR(norm(i, rows));
    RETURN_IF_ERROR(qkv(i, rows));
    RETURN_IF_ERROR(attention(i, rows));
    RETURN_IF_ERROR(kernels::matmul(*stream_, {.x = attention_.as<float>(),
                                               .weights = matrix(layers_[i].o, s.hidden, q_width),
                                               .y = hidden_.as<float>(),
                                               .x_stride = q_width,
                                               .y_stride = s.hidden,
                                               .rows = rows,
                                               .accumulate = true}));
    RETURN_IF_ERROR(norm(i, rows));
    RETURN_IF_ERROR(router(i, rows));
    RETURN_IF_ERROR(stream_->copy_to_host(host_experts_.data(), experts_.data(),
                                          sizeof(int32_t) * rows * s.top_k));
    ASSIGN_OR_RETURN(const kernels::Event chosen, stream_->record());
    RETURN_IF_ERROR(chosen.wait_until(absl::Now() + kDeadline));
    RETURN_IF_ERROR(experts(i, rows));
    RETURN_IF_ERROR(combine(rows));
  }
  return absl::OkStatus();
}

absl::Status LayerStack::logits(int rows) {
  return kernels::matmul(*stream_, {.x = hidden_.as<float>(),
                                    .weights = matrix(output_, shape_.vocab, shape_.hidden),
                                    .y = logits_.as<float>(),
                                    .x_stride = shape_.hidden,
                                    .y_stride = shape_.vocab,
                                    .rows = rows});
}

absl::Status LayerStack::synchronize() { return stream_->synchronize(absl::Now() + kDeadline); }

int LayerStack::distinct(int rows) const {
  return std::min(shape_.experts, rows + shape_.top_k - 1);
}

double LayerStack::qkv_bytes() const {
  return 2.0 * shape_.hidden * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
}
// Rows of a prompt share what they read.
double LayerStack::attention_bytes(int rows) const {
  const int readers = is_decode(rows) ? rows : 1;
  return 4.0 * readers * shape_.context * shape_.kv_heads * shape_.head_dim;
}
double LayerStack::attention_flop(int rows) const {
  const double before = is_decode(rows) ? 0 : (rows - 1) / 2.0;  // a prompt's rows see one another
  return 4.0 * rows * (shape_.context - before) * shape_.heads * shape_.head_dim;
}
double LayerStack::logits_bytes() const { return 2.0 * shape_.vocab * shape_.hidden; }
double LayerStack::expert_bytes(int rows) const {
  return 6.0 * distinct(rows) * shape_.hidden * shape_.ffn;
}
double LayerStack::layer_bytes(int rows) const {
  const double o = 2.0 * shape_.hidden * shape_.heads * shape_.head_dim;
  return qkv_bytes() + attention_bytes(rows) + o + expert_bytes(rows);
}
double LayerStack::expert_flop(int rows) const {
  return 6.0 * rows * shape_.top_k * shape_.hidden * shape_.ffn;
}

}  // namespace brigade::bench
