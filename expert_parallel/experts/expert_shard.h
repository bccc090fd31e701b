// The experts that one process holds: packed weights per (MoE layer, expert) on its device. Filled
// at start or when experts are assigned later; the same class serves the coordinator's local
// experts and an expert worker.
//
// Threads. prepare() and resident_bytes(): any. All else: the owner's, one at a time, with one
// exception. A slot changes only while no view in use names it; slots do not move. So inserting or
// unloading beside a running step thread is safe as long as that thread never touches those slots.
#pragma once

#include <atomic>
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
  int experts = 0;  // per MoE layer
  int top_k = 0;
  int hidden = 0;
  int ffn = 0;
  // Gives the weights' dtype; a shard keeps them in the layout that its device reads.
  kernels::WeightFormat format = kernels::WeightFormat::kF32Panels16;
  kernels::DType wire_dtype = kernels::DType::kF32;
};

// One expert's row-major host matrices, as a checkpoint holds them: [ffn, hidden] twice, [hidden,
// ffn].
struct ExpertSource {
  const void* gate = nullptr;
  const void* up = nullptr;
  const void* down = nullptr;
};

// An expert packed on a shard's device, not in its slot yet. Move-only; may outlive the shard, not
// the device.
struct PreparedExpert {
  int moe_layer = -1;
  int expert = -1;
  kernels::Buffer gate_up, down;
  uint64_t checksum = 0;
  size_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

class ExpertShard {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertShard>> create(kernels::Device& device,
                                                             const ExpertGeometry& geometry);

  // Packs and uploads one expert; the slow part of loading. `stream` is the caller's. Any thread.
  absl::StatusOr<PreparedExpert> prepare(kernels::Stream& stream, int moe_layer, int expert,
                                         const ExpertSource& source) const;
  // Puts it into its slot: a few pointers. Replaces nothing: ALREADY_EXISTS when one is there.
  absl::Status insert(PreparedExpert expert);
  // Both at once. ALREADY_EXISTS before any work.
  absl::Status load(kernels::Stream& stream, int moe_layer, int expert, const ExpertSource& source);
  // Takes an expert out of its slot: again a few pointers; whoever gets it frees it, on any thread.
  absl::StatusOr<PreparedExpert> remove(int moe_layer, int expert);
  // Removes and frees.
  absl::Status unload(int moe_layer, int expert);
  bool holds(int moe_layer, int expert) const;
  // Packed bytes in slots.
  size_t resident_bytes() const { return resident_bytes_.load(std::memory_order_relaxed); }
  // Packed bytes of any one expert.
  size_t expert_bytes() const;
  // XXH3 of the source's bytes with the id of the cluster's format; the same on every machine and
  // for every layout in which a device keeps them.
  absl::StatusOr<uint64_t> checksum(int moe_layer, int expert) const;

  const ExpertGeometry& geometry() const { return geometry_; }
  const kernels::ExpertWeights& weights(int moe_layer, int expert) const;

 private:
  struct Slot {
    PreparedExpert packed;
    kernels::ExpertWeights weights;
    bool loaded = false;
  };
  ExpertShard(kernels::Device& device, const ExpertGeometry& geometry);
  absl::Status check_index(int moe_layer, int expert) const;
  absl::Status check_absent(int moe_layer, int expert) const;
  const Slot& slot(int moe_layer, int expert) const;
  uint64_t checksum_of(const ExpertSource& source) const;

  kernels::Device& device_;
  const ExpertGeometry geometry_;
  const kernels::WeightFormat format_;
  std::vector<Slot> slots_;
  std::atomic<size_t> resident_bytes_{0};
};

}  // namespace brigade::expert_parallel
