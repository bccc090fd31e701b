#include "tests/runtime/engine/split_k_exchange.h"

#include <cmath>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "runtime/model/tensor_rows.h"

namespace brigade::tests {
namespace {

using expert_parallel::LayerRows;

struct Ffn {
  std::vector<float> gate, up, down;  // row-major [ffn, hidden], [ffn, hidden], [hidden, ffn]
};

struct Experts {
  int hidden = 0, ffn = 0, top_k = 0;
  std::vector<std::vector<Ffn>> layers;  // [moe layer][expert]
};

float dot(const float* a, const float* b, int first, int last) {
  float sum = 0;
  for (int k = first; k < last; ++k) sum = std::fma(a[k], b[k], sum);
  return sum;
}

class SplitKExchange : public expert_parallel::Exchange {
 public:
  SplitKExchange(std::shared_ptr<const Experts> experts, int parts, int max_rows)
      : experts_(std::move(experts)),
        parts_(parts),
        middle_(static_cast<size_t>(experts_->ffn)),
        answers_(static_cast<size_t>(max_rows) * static_cast<size_t>(experts_->top_k) *
                 static_cast<size_t>(experts_->hidden)) {}

  absl::Status begin(kernels::Stream& stream, const LayerRows& layer, kernels::Waker*) override {
    for (int slot = 0; slot < layer.rows * experts_->top_k; ++slot) {
      const float* x = layer.x + int64_t{slot / experts_->top_k} * experts_->hidden;
      run_expert(experts_->layers[static_cast<size_t>(layer.moe_layer)]
                                 [static_cast<size_t>(layer.experts[slot])],
                 x, answers_.data() + int64_t{slot} * experts_->hidden);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<bool> poll() override { return true; }
  const void* answers() const override { return answers_.data(); }
  kernels::DType answer_dtype() const override { return kernels::DType::kF32; }

 private:
  void run_expert(const Ffn& ffn, const float* x, float* out) {
    const int hidden = experts_->hidden, width = experts_->ffn;
    for (int i = 0; i < width; ++i) {
      const float gate = dot(ffn.gate.data() + int64_t{i} * hidden, x, 0, hidden);
      const float up = dot(ffn.up.data() + int64_t{i} * hidden, x, 0, hidden);
      middle_[static_cast<size_t>(i)] = gate / (1 + std::exp(-gate)) * up;
    }
    for (int n = 0; n < hidden; ++n) {
      float sum = 0;
      for (int part = 0; part < parts_; ++part) {
        sum += dot(ffn.down.data() + int64_t{n} * width, middle_.data(), width * part / parts_,
                   width * (part + 1) / parts_);
      }
      out[n] = sum;
    }
  }

  const std::shared_ptr<const Experts> experts_;
  const int parts_;
  std::vector<float> middle_, answers_;
};

std::vector<float> widened(const runtime::TensorView& tensor) {
  std::vector<float> storage;
  size_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<size_t>(size);
  const void* data = runtime::in_dtype(tensor, kernels::DType::kF32, storage);
  const auto* values = static_cast<const float*>(data);
  return {values, values + elements};
}

}  // namespace

absl::StatusOr<runtime::ExchangeFactory> split_k_exchange(const std::string& folder,
                                                          int fixed_parts) {
  ASSIGN_OR_RETURN(const runtime::OpenedModel model, runtime::open_model(folder));
  auto experts = std::make_shared<Experts>();
  experts->hidden = model.spec.hidden;
  for (size_t i = 0; i < model.spec.layers.size(); ++i) {
    if (!model.spec.layers[i].moe) continue;
    experts->ffn = model.spec.layers[i].moe->ffn;
    experts->top_k = model.spec.layers[i].moe->rule.top_k;
    experts->layers.emplace_back();
    for (const runtime::FfnTensors& expert : model.tensors.layers[i].experts) {
      experts->layers.back().push_back(
          {widened(expert.gate), widened(expert.up), widened(expert.down)});
    }
  }
  return runtime::ExchangeFactory(
      [experts, fixed_parts](
          kernels::Device& device, const expert_parallel::ExpertShard&,
          int max_rows) -> absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>> {
        const int parts = fixed_parts > 0 ? fixed_parts : device.num_threads();
        return std::make_unique<SplitKExchange>(experts, parts, max_rows);
      });
}

}  // namespace brigade::tests
