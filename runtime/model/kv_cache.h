// The memory of all keys and values: blocks of block_size positions, each holding every layer. Who
// uses which block is the scheduler's business; this only knows bytes. Shared by the microbatches
// of one model, which run on one step thread; must outlive them.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/ops/kv_layout.h"
#include "runtime/model/model_spec.h"
#include "runtime/model/step_model.h"

namespace brigade::runtime {

struct KvCacheOptions {
  kernels::DType dtype = kernels::DType::kF32;  // f32, bf16 or f16; part of the numerics
  int block_size = 16;                          // positions
  int num_blocks = 0;                           // 0: as many as memory_bytes hold
  int64_t memory_bytes = 0;
  bool poison = false;  // tests: unwritten entries read as NaN
};

// Bytes of one block, all layers.
int64_t kv_bytes_per_block(const ModelSpec& spec, const KvCacheOptions& options);

class KvCache {
 public:
  // INVALID_ARGUMENT when the budget holds no block; RESOURCE_EXHAUSTED when memory does not.
  static absl::StatusOr<std::unique_ptr<KvCache>> create(kernels::Device& device,
                                                         const ModelSpec& spec,
                                                         const KvCacheOptions& options);

  const KvGeometry& geometry() const { return geometry_; }
  kernels::DType dtype() const { return layer_.dtype; }
  kernels::KvLayerView layer(int index) const;
  // Enqueues a copy of all layers of one block.
  absl::Status copy_block(kernels::Stream& stream, int from, int to) const;

 private:
  KvCache() = default;

  KvGeometry geometry_;
  kernels::KvLayerView layer_;  // of layer 0
  kernels::Buffer buffer_;
};

}  // namespace brigade::runtime
