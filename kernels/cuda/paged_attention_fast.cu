// Paged attention on tensor cores, for the mode that gives up equal bits: queries and weights are
// rounded to the cache's dtype, products are summed in the order of the hardware, the softmax is
// carried over tiles of 64 positions. For many rows over a bf16 or f16 cache; everything else goes
// to paged_attention().
//
// A block of four warps takes up to 64 queries (a row and one head each) of one KV head; a warp has
// 16 of them, and keeps their outputs in fragments until the end. What a row does not see is
// selected away here too: values that are not finite are staged as zeros, and the rows that see
// them become NaN.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/cuda_kernels.h"

namespace brigade::kernels::cuda {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kWarps = 4;
constexpr int kFastThreads = kWarps * kWarp;
constexpr int kStrip = 16;  // queries of a warp; also the side of a fragment
constexpr int kQueries = kWarps * kStrip;
constexpr int kPositions = 64;  // of a tile
// Row lengths in shared memory: 16 bytes more than the data, against bank conflicts.
constexpr int kScoreStride = kPositions + 4;
constexpr int kWeightStride = kPositions + 8;
constexpr int kMaxFastHeadDim = 256;
// Tiles that are not full pay when there are at least so many: they do not divide a long context
// among each other as the blocks of paged_attention() do. Reasoned, not measured.
constexpr int64_t kLeastPartTiles = 64;
constexpr float kNoScore = -1e30f;  // below every score

template <typename T>
struct FragmentElement;
template <>
struct FragmentElement<Bf16> {
  using Type = __nv_bfloat16;
};
template <>
struct FragmentElement<F16> {
  using Type = __half;
};

// Where the arrays lie in shared memory, in bytes; all begin at multiples of 32.
struct FastPlace {
  int q, tile, scores, weights, scalars, offsets, end;
};
__host__ __device__ constexpr FastPlace place_fast(int stride) {
  FastPlace at{};
  at.q = 0;
  at.tile = at.q + kQueries * stride * 2;
  at.scores = at.tile + kPositions * stride * 2;
  at.weights = at.scores + kQueries * kScoreStride * 4;
  at.scalars = at.weights + kQueries * kWeightStride * 2;
  at.offsets = at.scalars + 4 * kQueries * 4;
  at.end = at.offsets + kPositions * 8 + kPositions * 4;
  return at;
}

struct FastMemory {
  uint16_t* q;        // [kQueries, stride]
  uint16_t* tile;     // [kPositions, stride]: keys, then values
  float* scores;      // [kQueries, kScoreStride]
  uint16_t* weights;  // [kQueries, kWeightStride]
  float *max, *sum;   // [kQueries]
  int *first, *last;  // [kQueries]
  int64_t* offsets;   // [kPositions]
  int* broken;        // [kPositions]: the values of this position are not all finite
  int stride;

  __device__ FastMemory(unsigned char* memory, int stride_in) : stride(stride_in) {
    const FastPlace at = place_fast(stride);
    q = reinterpret_cast<uint16_t*>(memory + at.q);
    tile = reinterpret_cast<uint16_t*>(memory + at.tile);
    scores = reinterpret_cast<float*>(memory + at.scores);
    weights = reinterpret_cast<uint16_t*>(memory + at.weights);
    max = reinterpret_cast<float*>(memory + at.scalars);
    sum = max + kQueries;
    first = reinterpret_cast<int*>(sum + kQueries);
    last = first + kQueries;
    offsets = reinterpret_cast<int64_t*>(memory + at.offsets);
    broken = reinterpret_cast<int*>(offsets + kPositions);
  }
};

template <typename T>
__device__ void load_queries(const PagedAttentionArgs& args, const AttentionPlan& plan,
                             const QueryTile& tile, const FastMemory& memory) {
  const int head_dim = args.cache.head_dim, queries = tile.queries();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kQueries) {
    const PositionRange seen =
        thread < queries ? seen_by_row(args, tile.row_of(thread)) : PositionRange{0, 0};
    memory.first[thread] = seen.first;
    memory.last[thread] = seen.last;
    memory.max[thread] = kNoScore;
    memory.sum[thread] = 0;
  }
  copy_pieces<4, float>(
      kQueries, plan.padded,
      [&](int query, int column) {
        if (query >= queries || column >= head_dim) return 0.0f;
        return args.q[tile.row_of(query) * args.q_stride + int64_t{tile.head_of(query)} * head_dim +
                      column];
      },
      [&](int query, int column, float value) {
        memory.q[query * memory.stride + column] = narrow<T>(value).bits;
      });
  // Behind head_dim and where nothing is staged: zeros, so that no product is NaN.
  copy_pieces<4, float>(
      kPositions, memory.stride, [](int, int) { return 0.0f; },
      [&](int row, int column, float) { memory.tile[row * memory.stride + column] = 0; });
}

// Sign aside, exponents of all ones: infinity or NaN.
template <typename T>
constexpr unsigned kExponent = 0x7F80;
template <>
constexpr unsigned kExponent<F16> = 0x7C00;

// The two numbers in `pair`, those that are not finite as zeros; says whether there were such.
template <typename T>
__device__ __forceinline__ bool drop_infinite(unsigned& pair) {
  const bool low = (pair & kExponent<T>) == kExponent<T>;
  const bool high = (pair >> 16 & kExponent<T>) == kExponent<T>;
  if (low) pair &= 0xFFFF0000u;
  if (high) pair &= 0x0000FFFFu;
  return low || high;
}

// Stages keys or values (at `plus`) of the positions [first, last) of the tile. True: the thread
// met a value that is not finite.
template <typename T, bool kValues>
__device__ bool stage_rows(const PagedAttentionArgs& args, const AttentionPlan& plan,
                           const FastMemory& memory, int first, int last, int64_t plus) {
  const char* data = static_cast<const char*>(args.cache.data) + plus;
  const int64_t* offsets = memory.offsets + first;
  uint16_t* to = memory.tile + first * memory.stride;
  int* broken = memory.broken + first;
  bool met = false;
  if (plan.wide_loads) {
    copy_pieces<4, uint4>(
        last - first, args.cache.head_dim / 8,
        [&](int row, int column) {
          return __ldg(reinterpret_cast<const uint4*>(data + offsets[row]) + column);
        },
        [&](int row, int column, uint4 piece) {
          if (kValues) {
            const bool bad_x = drop_infinite<T>(piece.x), bad_y = drop_infinite<T>(piece.y);
            const bool bad_z = drop_infinite<T>(piece.z), bad_w = drop_infinite<T>(piece.w);
            if (bad_x || bad_y || bad_z || bad_w) broken[row] = 1, met = true;
          }
          *reinterpret_cast<uint4*>(to + row * memory.stride + column * 8) = piece;
        });
  } else {
    copy_pieces<4, unsigned>(
        last - first, args.cache.head_dim,
        [&](int row, int column) -> unsigned {
          return reinterpret_cast<const uint16_t*>(data + offsets[row])[column];
        },
        [&](int row, int column, unsigned value) {
          if (kValues && drop_infinite<T>(value)) broken[row] = 1, met = true;
          to[row * memory.stride + column] = static_cast<uint16_t>(value);
        });
  }
  return met;
}

// The strip's scores with the staged keys.
template <typename T>
__device__ void score_strip(const FastMemory& memory, int strip, int padded) {
  using Element = typename FragmentElement<T>::Type;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> scores[kPositions / 16];
#pragma unroll
  for (auto& part : scores) wmma::fill_fragment(part, 0.0f);
  const auto* q = reinterpret_cast<const Element*>(memory.q + strip * memory.stride);
  const auto* keys = reinterpret_cast<const Element*>(memory.tile);
#pragma unroll 1
  for (int k = 0; k < padded; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major> left;
    wmma::load_matrix_sync(left, q + k, memory.stride);
#pragma unroll
    for (int i = 0; i < kPositions / 16; ++i) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::col_major> right;
      wmma::load_matrix_sync(right, keys + 16 * i * memory.stride + k, memory.stride);
      wmma::mma_sync(scores[i], left, right, scores[i]);
    }
  }
  float* to = memory.scores + strip * kScoreStride;
#pragma unroll
  for (int i = 0; i < kPositions / 16; ++i) {
    wmma::store_matrix_sync(to + 16 * i, scores[i], kScoreStride, wmma::mem_row_major);
  }
}

// Weights of the strip's queries in this tile, which begins at position `base`; two lanes a query,
// each every other position. Afterwards the strip's scores hold 16 x 16 factors, by which what the
// queries have gathered so far shrinks.
template <typename T>
__device__ void softmax_strip(const FastMemory& memory, int strip, int base, float scale) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, query = strip + lane / 2, side = lane % 2;
  const PositionRange seen{memory.first[query] - base, memory.last[query] - base};
  float* scores = memory.scores + query * kScoreStride;
  uint16_t* weights = memory.weights + query * kWeightStride;
  const float before = memory.max[query];
  float top = before;
  for (int i = side; i < kPositions; i += 2) {
    if (seen.has(i)) top = fmaxf(top, scores[i] * scale);
  }
  top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
  float total = 0;
  for (int i = side; i < kPositions; i += 2) {
    const float weight = seen.has(i) ? __expf(scores[i] * scale - top) : 0.0f;
    weights[i] = narrow<T>(weight).bits;
    total += weight;
  }
  total += __shfl_xor_sync(kFullWarp, total, 1);
  const float keep = __expf(before - top);
  for (int i = side; i < 16; i += 2) scores[i] = keep;
  __syncwarp();  // both lanes have read the maximum of before
  if (side == 0) {
    memory.max[query] = top;
    memory.sum[query] = memory.sum[query] * keep + total;
  }
}

// Queries that see a value that is not finite become NaN.
__device__ void break_queries(const FastMemory& memory, int base) {
  const int query = static_cast<int>(threadIdx.x);
  if (query >= kQueries) return;
  const PositionRange seen{memory.first[query] - base, memory.last[query] - base};
  for (int i = 0; i < kPositions; ++i) {
    if (memory.broken[i] != 0 && seen.has(i)) memory.sum[query] = __uint_as_float(0x7FC00000u);
  }
}

template <int kFragments>
using Gathered = wmma::fragment<wmma::accumulator, 16, 16, 16, float>[kFragments];

// gathered = keep * gathered + weights * values, over the first `positions` of the tile.
template <typename T, int kFragments>
__device__ void add_values(const FastMemory& memory, int strip, int padded, int positions,
                           Gathered<kFragments>& gathered) {
  using Element = typename FragmentElement<T>::Type;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> keep;
  wmma::load_matrix_sync(keep, memory.scores + strip * kScoreStride, kScoreStride,
                         wmma::mem_row_major);
#pragma unroll
  for (auto& part : gathered) {
    for (int i = 0; i < part.num_elements; ++i) part.x[i] *= keep.x[i];
  }
  const auto* weights = reinterpret_cast<const Element*>(memory.weights + strip * kWeightStride);
  const auto* values = reinterpret_cast<const Element*>(memory.tile);
#pragma unroll 1
  for (int k = 0; k < positions; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, Element, wmma::row_major> left;
    wmma::load_matrix_sync(left, weights + k, kWeightStride);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      if (16 * i >= padded) break;
      wmma::fragment<wmma::matrix_b, 16, 16, 16, Element, wmma::row_major> right;
      wmma::load_matrix_sync(right, values + k * memory.stride + 16 * i, memory.stride);
      wmma::mma_sync(gathered[i], left, right, gathered[i]);
    }
  }
}

// Four fragments' columns at a time, by way of the strip's scores.
template <int kFragments>
__device__ void write_strip(const PagedAttentionArgs& args, const QueryTile& tile,
                            const FastMemory& memory, int strip,
                            const Gathered<kFragments>& gathered) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int head_dim = args.cache.head_dim, queries = min(kStrip, tile.queries() - strip);
  float* const scores = memory.scores + strip * kScoreStride;
#pragma unroll
  for (int begin = 0; begin < kFragments; begin += 4) {
    if (16 * begin >= head_dim) break;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wmma::store_matrix_sync(scores + 16 * i, gathered[begin + i], kScoreStride,
                              wmma::mem_row_major);
    }
    __syncwarp();
    for (int query = 0; query < queries; ++query) {
      const int row = tile.row_of(strip + query), head = tile.head_of(strip + query);
      const float inverse = 1.0f / memory.sum[strip + query];
      float* out = args.out + row * args.out_stride + int64_t{head} * head_dim + 16 * begin;
      for (int i = lane; i < min(64, head_dim - 16 * begin); i += kWarp) {
        out[i] = scores[query * kScoreStride + i] * inverse;
      }
    }
  }
}

template <typename T, int kFragments>
__global__ void __launch_bounds__(kFastThreads)
    attend_on_tensor_cores(const PagedAttentionArgs args, const AttentionPlan plan) {
  GPU_DYNAMIC_SHARED(unsigned char, shared);
  const QueryTile tile = find_tile(args, plan);
  if (tile.rows == 0) return;
  const FastMemory memory(shared, plan.stride);
  const int strip = static_cast<int>(threadIdx.x) / kWarp * kStrip;
  const bool works = strip < tile.queries();  // uniform over the warp
  load_queries<T>(args, plan, tile, memory);
  Gathered<kFragments> gathered;
#pragma unroll
  for (auto& part : gathered) wmma::fill_fragment(part, 0.0f);
  __syncthreads();
  const PositionRange all = seen_by_any(memory.first, memory.last, kQueries, 0, INT32_MAX);
  const int64_t plus = value_offset(args.cache, sizeof(T));
  for (int base = all.first / kPositions * kPositions; base < all.last; base += kPositions) {
    const PositionRange part =
        seen_by_any(memory.first, memory.last, kQueries, base, base + kPositions);
    if (part.empty()) continue;
    find_keys(args, tile, sizeof(T), base, part, memory.offsets);
    if (threadIdx.x < kPositions) memory.broken[threadIdx.x] = 0;
    __syncthreads();
    stage_rows<T, false>(args, plan, memory, part.first - base, part.last - base, 0);
    __syncthreads();
    if (works) score_strip<T>(memory, strip, plan.padded);
    __syncthreads();
    const bool broken =
        stage_rows<T, true>(args, plan, memory, part.first - base, part.last - base, plus);
    if (works) softmax_strip<T>(memory, strip, base, args.scale);
    if (__syncthreads_or(broken)) break_queries(memory, base);
    if (works) {
      add_values<T, kFragments>(memory, strip, plan.padded, part.last - base, gathered);
    }
    __syncthreads();
  }
  if (works) write_strip<kFragments>(args, tile, memory, strip, gathered);
}

template <typename T, int kFragments>
cudaError_t run(cudaStream_t stream, const PagedAttentionArgs& args, const AttentionPlan& plan) {
  void (*const kernel)(PagedAttentionArgs, AttentionPlan) = attend_on_tensor_cores<T, kFragments>;
  const cudaError_t error =
      allow_shared_memory(reinterpret_cast<const void*>(kernel), plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(args.rows, args.cache.kv_heads * plan.head_parts);
  return launch(kernel, grid, dim3(kFastThreads), plan.shared_bytes, stream, args, plan);
}

template <typename T>
cudaError_t run(cudaStream_t stream, const PagedAttentionArgs& args, const AttentionPlan& plan) {
  return plan.padded <= 128 ? run<T, 8>(stream, args, plan) : run<T, 16>(stream, args, plan);
}

}  // namespace

cudaError_t paged_attention_fast(cudaStream_t stream, const PagedAttentionArgs& args) {
  AttentionPlan plan;
  divide_rows(args, kQueries, plan);
  const int64_t together = ceil_div(args.rows, args.sequences) * (args.heads / args.cache.kv_heads);
  const bool enough = together >= kQueries || (together >= kQueries / 2 &&
                                               most_blocks(args, plan) >= kLeastPartTiles);
  if (args.cache.dtype == DType::kF32 || plan.padded > kMaxFastHeadDim || !enough) {
    return paged_attention(stream, args);
  }
  plan.stride = plan.padded + 8;
  plan.shared_bytes = place_fast(plan.stride).end;
  return args.cache.dtype == DType::kBF16 ? run<Bf16>(stream, args, plan)
                                          : run<F16>(stream, args, plan);
}

}  // namespace brigade::kernels::cuda
