// Decoder layers of a model's shape with made-up weights, built from the ops alone: what a decode
// step costs on a device without a checkpoint of that size. The step reads the experts' choice back
// once a layer, as the engine does; host memory is pinned. One thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/host_buffer.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace brigade::bench {

struct LayerShape {
  int hidden = 4096, heads = 32, kv_heads = 8, head_dim = 128;
  int experts = 8, top_k = 2, ffn = 14336, vocab = 32000;  // 8x7B
  int context = 4096;                                      // positions of a sequence
  int block_size = 16;
  int sequences = 16;  // up to so many rows are one of a sequence each, more are a prompt's last
};

class LayerStack {
 public:
  // bf16 weights and cache; `layers` of them with memory of their own, so that none is cached.
  static absl::StatusOr<std::unique_ptr<LayerStack>> create(kernels::Device& device,
                                                            const LayerShape& shape, int layers,
                                                            int max_rows);

  // One pass of `rows` rows through all layers, without the output matrix. Row r goes to experts r,
  // r + 1, ... modulo the number of experts.
  absl::Status layers(int rows);
  // The output matrix over `rows` rows.
  absl::Status logits(int rows);
  // Single ops, for timing them alone: on one layer after the other, so that no cache keeps one.
  absl::Status qkv(int layer, int rows);
  absl::Status attention(int layer, int rows);
  absl::Status router(int layer, int rows);
  absl::Status experts(int layer, int rows);
  absl::Status combine(int rows);
  absl::Status norm(int layer, int rows);

  // Device memory with small numbers that differ, whether read as bf16 or f32: equal ones would
  // cost a GPU less power, and so give times that no model sees.
  absl::StatusOr<kernels::Buffer> filled(size_t bytes);

  absl::Status synchronize();
  kernels::Stream& stream() { return *stream_; }
  const LayerShape& shape() const { return shape_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }

  // Bytes and products of one call, for the rates.
  double qkv_bytes() const, attention_bytes(int rows) const, logits_bytes() const;
  double expert_bytes(int rows) const;  // of the distinct experts
  double layer_bytes(int rows) const;   // weights and cache of one layer of layers()
  double attention_flop(int rows) const, expert_flop(int rows) const;

 private:
  struct Layer {
    kernels::Buffer qkv, o, router, norm;
    std::vector<kernels::Buffer> gate_up, down;
    kernels::Buffer cache;
  };
  LayerStack(kernels::Device& device, const LayerShape& shape);
  absl::Status make_pattern();
  absl::StatusOr<kernels::Buffer> indices(const std::vector<int32_t>& values);
  absl::Status make_layer(Layer& layer);
  absl::Status make_buffers(int max_rows);
  kernels::PackedMatrix matrix(const kernels::Buffer& buffer, int64_t outputs, int64_t k) const;
  absl::Status plan_experts(int rows);
  bool is_decode(int rows) const { return rows <= shape_.sequences; }
  int distinct(int rows) const;

  kernels::Device& device_;
  const LayerShape shape_;
  const kernels::WeightFormat format_;  // bf16 as the device likes to read it
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<Layer> layers_;
  kernels::Buffer output_, hidden_, normed_, qkv_, attention_, router_logits_, gates_, experts_,
      answers_;
  kernels::Buffer logits_, attention_scratch_, ffn_scratch_, tables_;
  // Of decode rows, then of a prompt's rows.
  kernels::Buffer decode_positions_, decode_sequences_, prompt_positions_, prompt_sequences_;
  kernels::Buffer row_index_, out_index_;
  kernels::HostBuffer pattern_, host_experts_, host_rows_, host_slots_;
  std::vector<std::vector<kernels::ExpertGroup>> groups_;  // [layer], for planned_rows_
  int max_rows_ = 0, planned_rows_ = 0;
};

}  // namespace brigade::bench
