// One segment of paged attention in shared memory, with the arithmetic of
// kernels/cpu/attention_tile-inl.h: scores, softmax, weighted values. A block's threads call these
// together; where one reads what others wrote, the caller synchronises.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace brigade::kernels::cuda {

// What becomes of a query's partial result of this segment.
enum State : int { kUnseen, kFirst, kMerged };

// The block's shared memory. Only its address is kept in registers: where each array begins is part
// of the plan, which lies in constant memory.
struct Memory {
  float* memory;
  const AttentionPlan& plan;

  // [kKvSegment]: where the segment's keys lie
  __device__ int64_t* offsets() const { return reinterpret_cast<int64_t*>(memory); }
  // [queries, plan.stride]
  __device__ float* q() const { return memory + plan.q_at; }
  // [tile_positions, plan.stride]: keys or values in f32, zeros behind head_dim
  __device__ float* tile() const { return memory + plan.tile_at; }
  // [queries, padded]: merged so far
  __device__ float* acc() const { return memory + plan.acc_at; }
  // [queries, padded]: of this segment, between tiles of values
  __device__ float* partial() const { return memory + plan.partial_at; }
  // [kKvSegment, plan.weight_stride]: scores, then weights
  __device__ float* weights() const { return memory + plan.weights_at; }
  // [queries] each
  __device__ float* keep() const { return scalars(0); }
  __device__ float* take() const { return scalars(1); }
  __device__ float* max() const { return scalars(2); }
  __device__ float* sum() const { return scalars(3); }
  __device__ int* first() const { return reinterpret_cast<int*>(scalars(4)); }
  __device__ int* last() const { return reinterpret_cast<int*>(scalars(5)); }
  __device__ int* state() const { return reinterpret_cast<int*>(scalars(6)); }
  // The query's slot of segment 0, were it there.
  __device__ int* slot() const { return reinterpret_cast<int*>(scalars(7)); }
  // One each: a counter; the block's rows and heads, here because registers are short.
  __device__ int* total() const { return reinterpret_cast<int*>(scalars(kQueryScalars)); }
  __device__ QueryTile* queries() const { return reinterpret_cast<QueryTile*>(total() + 1); }

  __device__ float* scalars(int which) const {
    return memory + plan.scalars_at + which * plan.queries;
  }
};

__device__ __forceinline__ void widen_piece(const uint4& words, float, float* to) {
  *reinterpret_cast<uint4*>(to) = words;
}
template <typename T>
__device__ __forceinline__ void widen_piece(const uint4& words, T, float* to) {
  const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const T low{static_cast<uint16_t>(pairs[i])}, high{static_cast<uint16_t>(pairs[i] >> 16)};
    to[2 * i] = widen(low);
    to[2 * i + 1] = widen(high);
  }
}

// Stages the rows of `range` (keys, or values at `plus` bytes behind them) as f32; row 0 of the
// tile is position `base` of the segment that begins at `segment_base`.
template <typename T>
__device__ __forceinline__ void stage_rows(const PagedAttentionArgs& args,
                                           const AttentionPlan& plan, const Memory& memory,
                                           int segment_base, int base, PositionRange range,
                                           int64_t plus) {
  const char* data = static_cast<const char*>(args.cache.data) + plus;
  const int head_dim = args.cache.head_dim, skipped = range.first - base;
  const int64_t* offsets = memory.offsets() + (range.first - segment_base);
  float* tile = memory.tile() + skipped * memory.plan.stride;
  const int stride = memory.plan.stride;
  const int rows = range.last - range.first;
  if (plan.wide_loads) {
    constexpr int kWidth = 16 / sizeof(T);
    copy_pieces<4, uint4>(
        rows, head_dim / kWidth,
        [&](int row, int column) {
          return __ldg(reinterpret_cast<const uint4*>(data + offsets[row]) + column);
        },
        [&](int row, int column, const uint4& words) {
          widen_piece(words, T{}, tile + row * stride + column * kWidth);
        });
  } else {
    copy_pieces<4, T>(
        rows, head_dim,
        [&](int row, int column) {
          return reinterpret_cast<const T*>(data + offsets[row])[column];
        },
        [&](int row, int column, const T& value) { tile[row * stride + column] = widen(value); });
  }
}

// Queries, what they see, and the zeros behind head_dim. Queries beyond the tile's count as seeing
// all, so that they slow nobody down; what they compute is not read.
__device__ __forceinline__ void load_queries(const PagedAttentionArgs& args,
                                             const AttentionPlan& plan, const QueryTile& tile,
                                             const Memory& memory) {
  const int head_dim = args.cache.head_dim, queries = tile.queries();
  for (int j = static_cast<int>(threadIdx.x); j < plan.queries; j += static_cast<int>(blockDim.x)) {
    const PositionRange seen =
        j < queries ? seen_by_row(args, tile.row_of(j)) : PositionRange{0, INT32_MAX};
    memory.first()[j] = seen.first;
    memory.last()[j] = seen.last;
    memory.sum()[j] = 0;
    memory.max()[j] = 0;
    memory.state()[j] = kUnseen;
  }
  copy_pieces<4, float>(
      plan.queries, plan.padded,
      [&](int query, int column) {
        if (query >= queries || column >= head_dim) return 0.0f;
        return args.q[tile.row_of(query) * args.q_stride + int64_t{tile.head_of(query)} * head_dim +
                      column];
      },
      [&](int query, int column, float value) {
        memory.q()[query * memory.plan.stride + column] = value;
      });
  const int behind = plan.padded - head_dim;
  if (behind > 0) {
    copy_pieces<1, float>(
        plan.tile_positions, behind, [](int, int) { return 0.0f; },
        [&](int row, int column, float zero) {
          memory.tile()[row * memory.plan.stride + head_dim + column] = zero;
        });
  }
}

__device__ __forceinline__ void add_products(const float4& a, const float4& b, float (&lanes)[4]) {
  lanes[0] = __fmaf_rn(a.x, b.x, lanes[0]);
  lanes[1] = __fmaf_rn(a.y, b.y, lanes[1]);
  lanes[2] = __fmaf_rn(a.z, b.z, lanes[2]);
  lanes[3] = __fmaf_rn(a.w, b.w, lanes[3]);
}

// Four of the 16 lanes of 2 x 2 scores: those of the elements part, ..., part + 3 of each 16.
__device__ __forceinline__ void quarter_scores(const float* q, const float* k, int padded,
                                               int stride, int part, float (&lanes)[2][2][4]) {
#pragma unroll
  for (int i = 0; i < 16; ++i) lanes[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll 1
  for (int at = part; at < padded; at += kLanes) {
    const float4 q0 = *reinterpret_cast<const float4*>(q + at);
    const float4 q1 = *reinterpret_cast<const float4*>(q + 4 * stride + at);
    const float4 k0 = *reinterpret_cast<const float4*>(k + at);
    const float4 k1 = *reinterpret_cast<const float4*>(k + 8 * stride + at);
    add_products(q0, k0, lanes[0][0]);
    add_products(q0, k1, lanes[0][1]);
    add_products(q1, k0, lanes[1][0]);
    add_products(q1, k1, lanes[1][1]);
  }
}

// Eight lanes, joined pair by pair over the tree's first level. Four and four, because registers
// are short.
__device__ __forceinline__ void half_scores(const float* q, const float* k, int padded, int stride,
                                            int part, float (&joined)[2][2][4]) {
  float far[2][2][4];
  quarter_scores(q, k, padded, stride, part, joined);
  quarter_scores(q, k, padded, stride, part + 8, far);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float& lane = joined[i / 8][i / 4 % 2][i % 4];
    lane = __fadd_rn(lane, far[i / 8][i / 4 % 2][i % 4]);
  }
}

// The tree's other levels.
__device__ __forceinline__ float join_lanes(const float (&low)[4], const float (&high)[4]) {
  const float a = __fadd_rn(low[0], high[0]), b = __fadd_rn(low[1], high[1]);
  const float c = __fadd_rn(low[2], high[2]), d = __fadd_rn(low[3], high[3]);
  return __fadd_rn(__fadd_rn(a, c), __fadd_rn(b, d));
}

// Scores of the staged keys [first, last), into the weights from row `offset` on. A warp takes 8
// queries and 16 positions at a time, a thread 2 and 2 of them. Positions that nobody sees give
// what they may.
__device__ __forceinline__ void score_tile(const AttentionPlan& plan, const Memory& memory,
                                           int queries, int offset, int first, int last) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int octets = (queries + 7) / 8, begin = first / 16;
  const int tasks = octets * ((last + 15) / 16 - begin);
  for (int task = warp; task < tasks; task += static_cast<int>(blockDim.x) / kWarp) {
    const int query = task % octets * 8 + lane / 8;
    const int position = (begin + task / octets) * 16 + lane % 8;
    const float* q = memory.q() + query * plan.stride;
    const float* k = memory.tile() + position * plan.stride;
    float low[2][2][4], high[2][2][4];
    half_scores(q, k, plan.padded, plan.stride, 0, low);
    half_scores(q, k, plan.padded, plan.stride, 4, high);
    float* to = memory.weights() + (offset + position) * plan.weight_stride + query;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[4 * i] = join_lanes(low[i][0], high[i][0]);
      to[8 * plan.weight_stride + 4 * i] = join_lanes(low[i][1], high[i][1]);
    }
  }
}

// How a query's running maximum and sum take in a segment's; the vectors follow in finish().
__device__ __forceinline__ void merge_scalars(const Memory& memory, int query, float top,
                                              float total) {
  if (memory.sum()[query] == 0) {
    memory.state()[query] = kFirst;
    memory.max()[query] = top;
    memory.sum()[query] = total;
    return;
  }
  const float before = memory.max()[query];
  const float largest = top > before ? top : before;
  const float keep = exp_f32(__fsub_rn(before, largest));
  const float take = exp_f32(__fsub_rn(top, largest));
  memory.state()[query] = kMerged;
  memory.keep()[query] = keep;
  memory.take()[query] = take;
  memory.max()[query] = largest;
  memory.sum()[query] = __fmaf_rn(memory.sum()[query], keep, __fmul_rn(total, take));
}

// Turns the segment's scores into weights exp(scale * score - maximum), half a warp a query, lane =
// position mod 16. What a query does not see is selected away. done(query, maximum, sum) is called
// by one thread.
template <typename Done>
__device__ __forceinline__ void softmax_segment(const Memory& memory, int queries, int base,
                                                float scale, Done done) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int half = static_cast<int>(threadIdx.x) % kWarp / kLanes;
  for (int pair = static_cast<int>(threadIdx.x) / kWarp; pair * 2 < queries; pair += warps) {
    const int query = pair * 2 + half;
    const bool present = query < queries;
    const PositionRange seen{present ? memory.first()[query] - base : 0,
                             present ? memory.last()[query] - base : 0};
    float* column = memory.weights() + query;
    float values[kKvSegment / kLanes];
    float largest = -exp_f32_constants::kInfinity;
#pragma unroll
    for (int i = 0; i < kKvSegment / kLanes; ++i) {
      const int at = i * kLanes + lane;
      values[i] = seen.has(at) ? __fmul_rn(column[at * memory.plan.weight_stride], scale)
                               : -exp_f32_constants::kInfinity;
      largest = fmaxf(largest, values[i]);
    }
    const float top = largest16(largest);
    float total = 0;
#pragma unroll
    for (int i = 0; i < kKvSegment / kLanes; ++i) {
      values[i] = exp_f32(__fsub_rn(values[i], top));
      total = __fadd_rn(total, values[i]);
    }
    const float sum = sum16(total);
    if (!present) continue;
#pragma unroll
    for (int i = 0; i < kKvSegment / kLanes; ++i) {
      column[(i * kLanes + lane) * memory.plan.weight_stride] = values[i];
    }
    const bool sees = max(seen.first, 0) < min(seen.last, kKvSegment);
    if (lane == 0) {
      memory.state()[query] = kUnseen;
      if (sees) done(query, top, sum);
    }
  }
}

// sums[query][column] of 4 queries and 4 columns, over the staged values [begin, end). Weights of
// the positions start at `weights`; what a query does not see is skipped, not multiplied by zero.
template <bool kAllSeen>
__device__ __forceinline__ void add_weighted_rows(const float* weights, int weight_stride,
                                                  const float* values, int stride, int begin,
                                                  int end, const PositionRange* seen,
                                                  float (&sums)[4][4]) {
#pragma unroll 2
  for (int i = begin; i < end; ++i) {
    const float4 weight = *reinterpret_cast<const float4*>(weights + i * weight_stride);
    const float4 value = *reinterpret_cast<const float4*>(values + i * stride);
    const float each[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!kAllSeen && !seen[j].has(i)) continue;
      sums[j][0] = __fmaf_rn(each[j], value.x, sums[j][0]);
      sums[j][1] = __fmaf_rn(each[j], value.y, sums[j][1]);
      sums[j][2] = __fmaf_rn(each[j], value.z, sums[j][2]);
      sums[j][3] = __fmaf_rn(each[j], value.w, sums[j][3]);
    }
  }
}

// Adds the staged values, row 0 of which is position `base`, to the segment's partial results. A
// thread takes 4 queries and 4 columns at a time. `starts`: the segment's first tile; done(query,
// column, value) gets what the last tile completes.
template <typename Done>
__device__ __forceinline__ void add_values(const AttentionPlan& plan, const Memory& memory,
                                           int queries, int segment_base, int base,
                                           PositionRange range, bool starts, bool ends, Done done) {
  const int quads = plan.padded / 4, items = (queries + 3) / 4 * quads;
  for (int item = static_cast<int>(threadIdx.x); item < items;
       item += static_cast<int>(blockDim.x)) {
    const int query = item / quads * 4, column = item % quads * 4;
    PositionRange seen[4];
    bool all = true;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      seen[j] = {memory.first()[query + j] - base, memory.last()[query + j] - base};
      all = all && seen[j].first <= range.first - base && seen[j].last >= range.last - base;
    }
    float sums[4][4];
    float* partial = memory.partial() + query * plan.padded + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 from =
          starts ? float4{0, 0, 0, 0} : *reinterpret_cast<const float4*>(partial + j * plan.padded);
      sums[j][0] = from.x, sums[j][1] = from.y, sums[j][2] = from.z, sums[j][3] = from.w;
    }
    const float* weights =
        memory.weights() + (base - segment_base) * memory.plan.weight_stride + query;
    const float* values = memory.tile() + column;
    const int begin = range.first - base, end = range.last - base;
    if (all) {
      add_weighted_rows<true>(weights, memory.plan.weight_stride, values, memory.plan.stride, begin,
                              end, seen, sums);
    } else {
      add_weighted_rows<false>(weights, memory.plan.weight_stride, values, memory.plan.stride,
                               begin, end, seen, sums);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 sum{sums[j][0], sums[j][1], sums[j][2], sums[j][3]};
      if (!ends) {
        *reinterpret_cast<float4*>(partial + j * plan.padded) = sum;
      } else if (query + j < queries) {
        done(query + j, column, sum);
      }
    }
  }
}

}  // namespace brigade::kernels::cuda
