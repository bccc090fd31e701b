// What the attention kernels share: which rows a block takes, which positions they see, and where
// those lie in the cache. Everything here is uniform over the block unless it says otherwise.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/lanes16.cuh"
#include "kernels/cuda/math.cuh"

namespace brigade::kernels::cuda {

// Rows [row, row + rows) of one sequence, with `heads` heads from `head` on, which share kv_head.
// Query j is row j / heads with head j % heads. No rows: the block has nothing to do.
struct QueryTile {
  int row = 0;
  int rows = 0;
  int kv_head = 0;
  int head = 0;
  int heads = 0;
  int sequence = 0;
  __device__ int queries() const { return rows * heads; }
  __device__ int row_of(int query) const { return row + query / heads; }
  __device__ int head_of(int query) const { return head + query % heads; }
};

// A part [first, last) of the positions.
struct PositionRange {
  int first;
  int last;
  __device__ bool empty() const { return first >= last; }
  __device__ bool has(int position) const { return position >= first && position < last; }
};

__device__ __forceinline__ PositionRange seen_by_row(const PagedAttentionArgs& args, int row) {
  const int position = args.row_position[row];
  if (position < 0 || position / args.cache.block_size >= args.max_blocks) __trap();
  const int last = position + 1;
  return {args.window > 0 ? max(0, last - args.window) : 0, last};
}

__device__ __forceinline__ int segments_of(PositionRange seen) {
  return (seen.last - 1) / kKvSegment - seen.first / kKvSegment + 1;
}

// Blocks are launched for every row; only the one of a tile's first row works. Late rows of a
// prompt see more, so they go first.
__device__ __forceinline__ QueryTile find_tile(const PagedAttentionArgs& args,
                                               const AttentionPlan& plan) {
  QueryTile tile;
  const int row = args.rows - 1 - static_cast<int>(blockIdx.x);
  const int sequence = args.row_sequence[row];
  if (sequence < 0 || sequence >= args.sequences) __trap();
  if (row % plan.rows_per_tile != 0 && args.row_sequence[row - 1] == sequence) return tile;
  const int end = min(args.rows, (row / plan.rows_per_tile + 1) * plan.rows_per_tile);
  tile.row = row;
  tile.rows = 1;
  while (row + tile.rows < end && args.row_sequence[row + tile.rows] == sequence) ++tile.rows;
  const int group = args.heads / args.cache.kv_heads;
  const int part = static_cast<int>(blockIdx.y) % plan.head_parts;
  tile.kv_head = static_cast<int>(blockIdx.y) / plan.head_parts;
  tile.head = tile.kv_head * group + part * plan.queries;
  tile.heads = min(plan.queries, group - part * plan.queries);
  tile.sequence = sequence;
  return tile;
}

// What the queries see in [from, to) together; `first` and `last` are per query. All threads of the
// block call it.
__device__ __forceinline__ PositionRange seen_by_any(const int* first, const int* last, int queries,
                                                     int from, int to) {
  PositionRange all{to, from};
  for (int j = static_cast<int>(threadIdx.x) % kWarp; j < queries; j += kWarp) {
    const int begin = max(first[j], from), end = min(last[j], to);
    if (begin >= end) continue;
    all.first = min(all.first, begin);
    all.last = max(all.last, end);
  }
  return {__reduce_min_sync(kFullWarp, all.first), __reduce_max_sync(kFullWarp, all.last)};
}

// offsets[i]: bytes from cache.data to the key of position base + i, for positions of `range`. Each
// thread writes some; the caller synchronises.
__device__ __forceinline__ void find_keys(const PagedAttentionArgs& args, const QueryTile& tile,
                                          int element_bytes, int base, PositionRange range,
                                          int64_t* offsets) {
  const KvLayerView& cache = args.cache;
  const int32_t* table = args.block_tables + int64_t{tile.sequence} * args.max_blocks;
  for (int position = range.first + static_cast<int>(threadIdx.x); position < range.last;
       position += static_cast<int>(blockDim.x)) {
    const int block = table[position / cache.block_size];
    if (block < 0 || block >= cache.num_blocks) __trap();
    const int64_t row = int64_t{tile.kv_head} * cache.block_size + position % cache.block_size;
    offsets[position - base] =
        block * cache.block_stride_bytes + row * cache.head_dim * element_bytes;
  }
}

// From a position's key to its value.
__device__ __forceinline__ int64_t value_offset(const KvLayerView& cache, int element_bytes) {
  return int64_t{cache.kv_heads} * cache.block_size * cache.head_dim * element_bytes;
}

// Splits rows * columns pieces over the threads, a thread's pieces in one column, in rounds of
// kAtOnce loads that are under way together: load(row, column) gives a Piece, store(row, column,
// piece) puts it away.
template <int kAtOnce, typename Piece, typename Load, typename Store>
__device__ __forceinline__ void copy_pieces(int rows, int columns, Load load, Store store) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int side = min(columns, threads), step = threads / side;
  if (thread >= side * step) return;
  for (int column = thread % side; column < columns; column += side) {
    for (int begin = thread / side; begin < rows; begin += kAtOnce * step) {
      Piece pieces[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i * step < rows) pieces[i] = load(begin + i * step, column);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i * step < rows) store(begin + i * step, column, pieces[i]);
      }
    }
  }
}

}  // namespace brigade::kernels::cuda
