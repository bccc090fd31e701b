// Where one layer's keys and values lie in the paged cache. A block holds block_size positions of all
// layers; inside a block, a layer's keys then its values, each [kv_heads, block_size, head_dim].
// Everything outside attention and rope sees only bytes per block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace brigade::kernels {

inline constexpr int kMaxHeadDim = 1024;

struct KvLayerView {
  void* data = nullptr;            // start of this layer in block 0
  int64_t block_stride_bytes = 0;  // from a block to the next: all layers' bytes
  DType dtype = DType::kF32;       // f32, bf16 or f16
  int num_blocks = 0;
  int block_size = 0;              // positions
  int kv_heads = 0;
  int head_dim = 0;

  // Bytes of this layer in one block (keys and values).
  size_t layer_bytes() const {
    return size_t(2) * kv_heads * block_size * head_dim * dtype_bytes(dtype);
  }
};

}  // namespace brigade::kernels
