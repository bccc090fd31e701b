// What attention takes; the op is in kernels/ops/attention.h. Plain structs, also for device
// compilers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/kv_layout.h"

namespace brigade::kernels {

inline constexpr int kKvSegment = 128;  // positions per partial result; fixed: part of the numerics

struct PagedAttentionArgs {
  const float* q = nullptr;  // [rows, heads, head_dim], row stride q_stride; rotated
  KvLayerView cache;
  const int32_t* block_tables = nullptr;  // [sequences, max_blocks]: block of each logical block
  const int32_t* row_sequence = nullptr;  // [rows], index into block_tables
  const int32_t* row_position = nullptr;  // [rows], absolute position of the row
  float* out = nullptr;                   // [rows, heads * head_dim], row stride out_stride
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int rows = 0;
  int heads = 0;       // a multiple of cache.kv_heads
  int max_blocks = 0;  // row length of block_tables
  int sequences = 0;
  int window = 0;           // 0: all earlier positions; else only the last `window`
  float scale = 0;          // applied to q.k; 1/sqrt(head_dim) for Llama
  void* scratch = nullptr;  // attention_scratch_bytes()
  size_t scratch_bytes = 0;
};

}  // namespace brigade::kernels
