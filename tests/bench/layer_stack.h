// Decoder layers of a model's shape with made-up weights, built from the ops alone: what a decode
// step costs on a device without a checkpoint of that size. The step reads the experts' choice back
// once a layer, as the engine does. One thread.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace brigade::bench {

struct LayerShape {
  int hidden = 4096, heads = 32, kv_heads = 8, head_dim = 128;
  int experts = 8, top_k = 2, ffn = 14336, vocab = 32000;  // 8x7B
  int context = 1024;                                      // positions that a row attends to
  int block_size = 16;
};

class LayerStack {
 public:
  // bf16 weights and cache; `layers` of them with memory of their own, so that none is cached.
  static absl::StatusOr<std::unique_ptr<LayerStack>> create(kernels::Device& device,
                                                            const LayerShape& shape, int layers,
                                                            int max_rows);

  // One pass of `rows` decode rows through all layers, without the output matrix. Row r goes to
  // experts r, r + 1, ... modulo the number of experts.
  absl::Status layers(int rows);
  // The output matrix over `rows` rows.
  absl::Status logits(int rows);
  // Single ops on the first layer, for timing them alone.
  absl::Status qkv(int rows);
  absl::Status attention(int rows);
  absl::Status router(int rows);
  absl::Status experts(int layer, int rows);
  absl::Status combine(int rows);
  absl::Status norm(int rows);

  absl::Status synchronize();
  kernels::Stream& stream() { return *stream_; }
  const LayerShape& shape() const { return shape_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }

  // Bytes and products of one call, for the rates.
  double qkv_bytes() const, attention_bytes(int rows) const, logits_bytes() const;
  double expert_bytes(int rows) const;  // of the distinct experts
  double expert_flop(int rows) const;

 private:
  struct Layer {
    kernels::Buffer qkv, o, router, norm;
    std::vector<kernels::Buffer> gate_up, down;
    kernels::Buffer cache;
  };
  LayerStack(kernels::Device& device, const LayerShape& shape);
  absl::StatusOr<kernels::Buffer> filled(size_t bytes);
  absl::StatusOr<kernels::Buffer> indices(const std::vector<int32_t>& values);
  absl::Status make_layer(Layer& layer);
  absl::Status make_buffers(int max_rows);
  kernels::PackedMatrix matrix(const kernels::Buffer& buffer, int64_t outputs, int64_t k) const;
  absl::Status attention_of(const Layer& layer, int rows);
  int distinct(int rows) const;

  kernels::Device& device_;
  const LayerShape shape_;
  const kernels::WeightFormat format_;  // bf16 as the device likes to read it
  std::unique_ptr<kernels::Stream> stream_;
  std::vector<Layer> layers_;
  kernels::Buffer output_, hidden_, normed_, qkv_, attention_, router_logits_, gates_, experts_,
      answers_;
  kernels::Buffer logits_, positions_, sequences_, tables_, attention_scratch_, ffn_scratch_;
  kernels::Buffer row_index_, out_index_;
  std::vector<int32_t> host_experts_, host_rows_, host_slots_;
  std::vector<std::vector<kernels::ExpertGroup>> groups_;  // [layer]
};

}  // namespace brigade::bench
