// How paged attention is divided on a GPU, decided on the host from sizes alone: positions are
// known only on the device. Seen by host and device compilers. Private to
// kernels/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/ops/attention_args.h"

namespace brigade::kernels::cuda {

// Partial results wait in scratch memory for their merge: at most so many, in at most so many
// bytes.
inline constexpr size_t kMaxPartialBytes = size_t{64} << 20;
inline constexpr int64_t kMaxPartialSlots = 4096;

constexpr int padded_head_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

// Scratch: the first slot of each row (or kWalked), then slots. A slot holds one segment of one
// row: for each head a vector of `padded` floats; behind all vectors, maximum and sum of each head.
inline constexpr int32_t kWalked = -1;
constexpr size_t slot_table_bytes(int rows) {
  return (size_t(rows) * sizeof(int32_t) + 63) / 64 * 64;
}
constexpr size_t slot_bytes(int heads, int padded) {
  return size_t(heads) * (padded + 2) * sizeof(float);
}

inline constexpr int kQueryScalars = 8;  // of each query in shared memory
inline constexpr int kBlockScalars = 8;

// "Query": one row and one of the heads that share a KV head. A block takes a tile of consecutive
// rows of one sequence with the heads of one KV head, or with a part of them when they are many.
struct AttentionPlan {
  int padded = 0;          // head_dim, rounded up to 16
  int queries = 0;         // at most so many a block; a multiple of 8
  int rows_per_tile = 0;   // tiles begin at multiples of this and where the sequence changes
  int head_parts = 0;      // blocks that share the heads of one KV head
  int tile_positions = 0;  // keys or values in shared memory at a time; divides kKvSegment
  int threads = 0;
  int split = 0;            // blocks that share the segments of a tile; 1: none, tiles are walked
  int slots = 0;            // partial results that the scratch holds
  int64_t table_bytes = 0;  // of the scratch, before the slots
  bool wide_loads = false;  // rows of the cache lie at multiples of 16 bytes
  // Shared memory: where each array begins, in floats; see Memory in attention_segment.cuh.
  int stride = 0;         // of a query, key or value
  int weight_stride = 0;  // of a position's weights
  int q_at = 0, tile_at = 0, acc_at = 0, partial_at = 0, weights_at = 0, scalars_at = 0;
  size_t shared_bytes = 0;
};

// The plan of the kernels that give the CPU's bits.
AttentionPlan plan_attention(const PagedAttentionArgs& args);

// Rows, heads and loads of a block with at most `queries` queries.
void divide_rows(const PagedAttentionArgs& args, int queries, AttentionPlan& plan);
// Tiles over all sequences, times KV heads and parts: an upper bound.
int64_t most_blocks(const PagedAttentionArgs& args, const AttentionPlan& plan);

// Lets a kernel without shared variables take that much dynamic shared memory on the current GPU.
// cudaErrorInvalidConfiguration when a block there may not have so much. Any thread.
cudaError_t allow_shared_memory(const void* kernel, size_t bytes);
// Of a block on the current GPU, at most; 0 when it cannot be asked.
size_t most_shared_memory();

}  // namespace brigade::kernels::cuda
