// The spellings under which checkpoints store one MoE layer: classic Mixtral (block_sparse_moe, w1,
// w3, w2), projections by name, and all experts packed in two 3-D tensors. Pure functions.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"

namespace brigade::runtime {

struct MoeNames {
  std::string router;
  std::string experts;         // "...experts."; then the expert's number, "." and a matrix
  std::string gate, up, down;  // matrix names, or empty when packed
  std::string packed_gate_up;  // [experts, 2 * ffn, hidden]: gate rows, then up rows
  std::string packed_down;     // [experts, hidden, ffn]

  bool packed() const { return gate.empty(); }
  std::string expert(int index, const std::string& matrix) const {
    return experts + std::to_string(index) + "." + matrix;
  }
};

// The spelling of the layer at `prefix` ("model.layers.3.") of which the checkpoint `holds` most;
// classic Mixtral when it holds none.
MoeNames choose_moe_names(const std::string& prefix,
                          absl::FunctionRef<bool(const std::string&)> holds);

}  // namespace brigade::runtime
