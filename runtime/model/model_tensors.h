// The tensors of a checkpoint by their role in the model, pointing into mapped files. resolve() fills
// every role exactly once or says which name is missing, unknown or wrongly shaped.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"
#include "runtime/model/model_spec.h"

namespace brigade::runtime {

class Checkpoint;  // runtime/model/checkpoint.h; owns the mapping

struct TensorView {
  std::string name;
  const void* data = nullptr;  // host, inside a mapped file; possibly unaligned
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  bool present() const { return data != nullptr; }
};

struct FfnTensors {
  TensorView gate, up, down;   // [ffn, hidden], [ffn, hidden], [hidden, ffn]
};

struct LayerTensors {
  TensorView input_norm, q, k, v, o;
  TensorView q_bias, k_bias, v_bias, o_bias;  // absent unless the spec says so
  TensorView post_norm;
  FfnTensors dense;                           // dense layers
  TensorView router, router_bias;             // MoE layers: [experts, hidden], [experts]
  std::vector<FfnTensors> experts;
};

struct ModelTensors {
  TensorView embedding, final_norm, lm_head;  // lm_head equals embedding when tied
  std::vector<LayerTensors> layers;
};

absl::StatusOr<ModelTensors> resolve(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace brigade::runtime
