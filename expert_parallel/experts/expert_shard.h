// The experts that one process holds: packed weights per (MoE layer, expert) on its device, and the
// grouped FFN over rows that arrive for them. Filled at start or when experts are assigned later; the
// same class serves the coordinator's local experts and an expert worker. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/ops/moe.h"

namespace brigade::expert_parallel {

// Sizes that all processes of a cluster agree on.
struct ExpertGeometry {
  int moe_layers = 0;
  int experts = 0;      // per MoE layer
  int top_k = 0;
  int hidden = 0;
  int ffn = 0;
  kernels::WeightFormat format = kernels::WeightFormat::kF32Panels16;
  kernels::DType wire_dtype = kernels::DType::kF32;
};

// One expert's row-major host matrices, as a checkpoint holds them: [ffn, hidden] twice, [hidden, ffn].
struct ExpertSource {
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* down = nullptr;
};

class ExpertShard {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertShard>> create(kernels::Device& device,
                                                             const ExpertGeometry& geometry);

  // Packs and uploads one expert. Replaces nothing: ALREADY_EXISTS when it is there.
  absl::Status load(kernels::Stream& stream, int moe_layer, int expert, const ExpertSource& source);
  absl::Status unload(int moe_layer, int expert);
  bool holds(int moe_layer, int expert) const;
  size_t resident_bytes() const;
  // XXH3 of the packed bytes with the format id; the same on every machine.
  absl::StatusOr<uint64_t> checksum(int moe_layer, int expert) const;

  const ExpertGeometry& geometry() const { return geometry_; }
  const kernels::ExpertWeights& weights(int moe_layer, int expert) const;

 private:
  struct Slot {
    kernels::Buffer gate_up, down;
    kernels::ExpertWeights weights;
    uint64_t checksum = 0;
    bool loaded = false;
  };
  ExpertShard(kernels::Device& device, const ExpertGeometry& geometry);
  absl::Status check_index(int moe_layer, int expert) const;
  const Slot& slot(int moe_layer, int expert) const;

  kernels::Device& device_;
  const ExpertGeometry geometry_;
  std::vector<Slot> slots_;
  size_t resident_bytes_ = 0;
};

}  // namespace brigade::expert_parallel
