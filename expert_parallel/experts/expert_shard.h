// The experts that one process holds: packed weights per (MoE layer, expert) on its device. Filled
// at start or when experts are assigned later; the same class serves the coordinator's local
// experts and an expert worker. Their memory comes from a pool of equal slots (kernels/core/slot_pool.h):
// within what plan() asked for, experts come and go without a call to the device.
//
// Threads. plan(), prepare() and the counts of bytes: any. All else: the owner's, one at a time, with
// one exception. A place changes only while no view in use names it; places do not move. So inserting
// or unloading beside a running step thread is safe as long as that thread never touches those places.
//
// Reuse. The memory of an expert that goes is written again by the next one to be prepared, so it may
// go only when no stream reads it any more: on a worker between batches, which end with a wait for
// their stream; on a coordinator once every exchange has acknowledged a view without it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/slot_pool.h"
#include "kernels/core/staged_upload.h"
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

// An expert packed on a shard's device, not in its place yet. Move-only; may outlive the shard, not the
// device. Its memory goes back to the pool with it: not before `uploaded`.
struct PreparedExpert {
  int moe_layer = -1;
  int expert = -1;
  kernels::Slot memory;     // gate and up, then down
  kernels::Event uploaded;  // its bytes are there
  uint64_t checksum = 0;
};

class ExpertShard {
 public:
  static absl::StatusOr<std::unique_ptr<ExpertShard>> create(kernels::Device& device,
                                                             const ExpertGeometry& geometry);

  // Device memory for so many experts in all, with one allocation at most. It stays until the shard
  // goes. RESOURCE_EXHAUSTED with the bytes that are wanted and free. Nothing to do on `cpu`.
  absl::Status plan(int experts);
  // The same for so many more, which are guests: their memory is freed when all of them are gone.
  absl::Status reserve(int more);
  // Packs one expert and sends it off; the slow part of loading. `upload` is the caller's, which waits
  // for it (finish()) before insert(). Past the plan this allocates. Any thread.
  absl::StatusOr<PreparedExpert> prepare(kernels::StagedUpload& upload, int moe_layer, int expert,
                                         const ExpertSource& source) const;
  // Puts it into its place: a few pointers. Replaces nothing: ALREADY_EXISTS when one is there.
  absl::Status insert(PreparedExpert expert);
  // Prepares, waits and inserts. ALREADY_EXISTS before any work.
  absl::Status load(kernels::StagedUpload& upload, int moe_layer, int expert,
                    const ExpertSource& source);
  // Takes an expert out of its place: again a few pointers; its memory goes back with the result, on
  // any thread.
  absl::StatusOr<PreparedExpert> remove(int moe_layer, int expert);
  // Removes and gives its memory back.
  absl::Status unload(int moe_layer, int expert);
  bool holds(int moe_layer, int expert) const;
  // Packed bytes of the experts in their places.
  size_t resident_bytes() const { return resident_bytes_.load(std::memory_order_relaxed); }
  // What the device has given for experts: those, the ones that are being prepared, and spare slots.
  size_t reserved_bytes() const { return pool_.reserved_bytes(); }
  // Experts for which there is memory, held or not.
  size_t planned_experts() const { return pool_.slots(); }
  // Packed bytes of any one expert.
  size_t expert_bytes() const;
  // XXH3 of the source's bytes with the id of the cluster's format; the same on every machine and
  // for every layout in which a device keeps them.
  absl::StatusOr<uint64_t> checksum(int moe_layer, int expert) const;

  const ExpertGeometry& geometry() const { return geometry_; }
  const kernels::ExpertWeights& weights(int moe_layer, int expert) const;

 private:
  struct Place {
    PreparedExpert packed;
    kernels::ExpertWeights weights;
    bool loaded = false;
  };
  ExpertShard(kernels::Device& device, const ExpertGeometry& geometry);
  absl::Status check_index(int moe_layer, int expert) const;
  absl::Status check_absent(int moe_layer, int expert) const;
  const Place& place(int moe_layer, int expert) const;
  size_t gate_up_bytes() const;
  size_t down_bytes() const;
  uint64_t checksum_of(const ExpertSource& source) const;

  kernels::Device& device_;
  const ExpertGeometry geometry_;
  const kernels::WeightFormat format_;
  mutable kernels::SlotPool pool_;
  std::vector<Place> places_;
  std::atomic<size_t> resident_bytes_{0};
};

}  // namespace brigade::expert_parallel
