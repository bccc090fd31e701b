// What the dense ops take; the ops are in kernels/ops/dense.h. Plain structs, also for device
// compilers.
#pragma once

#include <cstdint>

#include "kernels/ops/kv_layout.h"
#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels {

// out[r] = table[ids[r]], widened to f32. An id outside [0, vocab) reads as a zero row: callers
// check ids.
struct EmbeddingArgs {
  const int32_t* ids = nullptr;  // [rows], each in [0, vocab)
  const void* table = nullptr;   // [vocab, hidden], row-major
  DType table_dtype = DType::kF32;
  float* out = nullptr;  // [rows, hidden]
  int rows = 0;
  int hidden = 0;
  int vocab = 0;
};

// out = x / sqrt(mean(x^2) + eps) * weight (Llama family). In place is allowed (out == x, same
// stride). The sum runs over 16 virtual lanes and the fixed tree.
struct RmsNormArgs {
  const float* x = nullptr;       // [rows, hidden], row stride x_stride
  const float* weight = nullptr;  // [hidden]
  float* out = nullptr;           // [rows, hidden], row stride out_stride
  int64_t x_stride = 0;           // elements
  int64_t out_stride = 0;
  int rows = 0;
  int hidden = 0;
  float eps = 0;
};

// y = x W^T (+ bias) or, with accumulate, y += x W^T (+ bias): one addition after the whole sum.
// Sum over K: one FMA chain per 256 k, block sums added in order.
struct MatmulArgs {
  const float* x = nullptr;     // [rows, k], row stride x_stride
  PackedMatrix weights;         // [outputs, k]
  const float* bias = nullptr;  // [outputs] or null
  float* y = nullptr;           // [rows, outputs], row stride y_stride; padding is not written
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  int rows = 0;
  bool accumulate = false;
};

// Rotates q in place and k, and writes the rotated k and v into the cache in its dtype.
// Split halves: lane i pairs with i + rotary_dim/2 (Llama, Mixtral); interleaved: 2i with 2i+1
// (families with latent attention). A lane a with partner b becomes fma(a, cos, -(b sin)), b
// becomes fma(b, cos, a sin); f32 to bf16 or f16 rounds to nearest even. Positions and slots out of
// range abort.
enum class RopePairing : uint8_t { kSplitHalves, kInterleaved };
struct RopeKvWriteArgs {
  float* q = nullptr;                  // [rows, heads, head_dim], row stride q_stride
  const float* k = nullptr;            // [rows, kv_heads, head_dim], row stride k_stride
  const float* v = nullptr;            // [rows, kv_heads, head_dim], row stride v_stride
  const int32_t* positions = nullptr;  // [rows], absolute, < max_positions
  const int64_t* slots = nullptr;    // [rows], block * block_size + offset; -1: nothing is written
  const float* cos_table = nullptr;  // [max_positions, rotary_dim / 2]
  const float* sin_table = nullptr;  // same shape
  KvLayerView cache;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0;
  int rows = 0;
  int heads = 0;
  int rotary_dim = 0;  // lanes past it are copied
  int max_positions = 0;
  RopePairing pairing = RopePairing::kSplitHalves;
};

// out[r] = x[index[r]]. The caller knows that every index is a row of x.
struct GatherRowsArgs {
  const float* x = nullptr;        // [*, width]
  const int32_t* index = nullptr;  // [rows]
  float* out = nullptr;            // [rows, width]
  int rows = 0;
  int width = 0;
};

}  // namespace brigade::kernels
