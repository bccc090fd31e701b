// Paged attention with the bits of kernels/cpu/paged_attention.cc. A block takes a tile of rows of
// one sequence and the heads of one KV head; keys and values are staged in shared memory once for
// all of them. Either it walks its segments in order and merges each at once, or, when there are
// few tiles, blocks share the segments of a tile, leave partial results in scratch memory, and a
// second kernel merges them in the same order. Whether a row's partial results fit is decided on
// the device, from the positions; rows that do not fit are walked.
//
// One thread computes a score: 16 chains and their tree. One thread computes an output of a
// segment: a chain over rising positions. Exact f32, on the ordinary cores, for all cache dtypes.
#include "kernels/cuda/attention_segment.cuh"
#include "kernels/cuda/cuda_kernels.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMergeThreads = 128;

// Partial results in the scratch.
struct Slots {
  char* memory;
  const AttentionPlan& plan;
  int heads;

  __device__ Slots(const PagedAttentionArgs& args, const AttentionPlan& plan_in)
      : memory(static_cast<char*>(args.scratch)), plan(plan_in), heads(args.heads) {}
  // [rows]: slot of the row's first segment
  __device__ int32_t* table() const { return reinterpret_cast<int32_t*>(memory); }
  // [padded]
  __device__ float* vector(int slot, int head) const {
    return vectors() + (int64_t{slot} * heads + head) * plan.padded;
  }
  // [2]: maximum, sum
  __device__ float* scalar(int slot, int head) const {
    return vectors() + int64_t{plan.slots} * heads * plan.padded +
           (int64_t{slot} * heads + head) * 2;
  }
  __device__ float* vectors() const { return reinterpret_cast<float*>(memory + plan.table_bytes); }
};

// Puts away what a segment's last values completed: in a slot, or merged into what earlier segments
// gave.
__device__ __forceinline__ void finish(const AttentionPlan& plan, const Memory& memory, int query,
                                       int column, const float4& sum, float* slot) {
  if (memory.state()[query] == kUnseen) return;
  float4 value = sum;
  float4* acc = reinterpret_cast<float4*>(memory.acc() + query * plan.padded + column);
  if (slot != nullptr) {
    acc = reinterpret_cast<float4*>(slot + column);
  } else if (memory.state()[query] == kMerged) {
    const float keep = memory.keep()[query], take = memory.take()[query];
    value.x = __fmaf_rn(acc->x, keep, __fmul_rn(sum.x, take));
    value.y = __fmaf_rn(acc->y, keep, __fmul_rn(sum.y, take));
    value.z = __fmaf_rn(acc->z, keep, __fmul_rn(sum.z, take));
    value.w = __fmaf_rn(acc->w, keep, __fmul_rn(sum.w, take));
  }
  *acc = value;
}

// One segment: merged into memory.acc(), or left in its slot.
template <typename T>
__device__ void attend_segment(const PagedAttentionArgs& args, const AttentionPlan& plan,
                               const QueryTile& tile, const Memory& memory, int segment,
                               bool to_slots) {
  const int base = segment * kKvSegment, queries = tile.queries();
  const PositionRange range =
      seen_by_any(memory.first(), memory.last(), queries, base, base + kKvSegment);
  if (range.empty()) return;
  find_keys(args, tile, sizeof(T), base, range, memory.offsets());
  __syncthreads();
  const int step = plan.tile_positions;
  const int first_tile = base + (range.first - base) / step * step;
  for (int at = first_tile; at < range.last; at += step) {
    const PositionRange part{max(at, range.first), min(at + step, range.last)};
    stage_rows<T>(args, plan, memory, base, at, part, 0);
    __syncthreads();
    score_tile(plan, memory, queries, at - base, part.first - at, part.last - at);
    __syncthreads();
  }
  const Slots slots(args, plan);
  softmax_segment(memory, queries, base, args.scale, [&](int query, float top, float total) {
    if (!to_slots) return merge_scalars(memory, query, top, total);
    memory.state()[query] = kFirst;
    float* scalar = slots.scalar(memory.slot()[query] + segment, tile.head_of(query));
    scalar[0] = top;
    scalar[1] = total;
  });
  const int64_t plus = value_offset(args.cache, sizeof(T));
  for (int at = first_tile; at < range.last; at += step) {
    const PositionRange part{max(at, range.first), min(at + step, range.last)};
    stage_rows<T>(args, plan, memory, base, at, part, plus);
    __syncthreads();
    add_values(plan, memory, queries, base, at, part, at == first_tile, at + step >= range.last,
               [&](int query, int column, const float4& sum) {
                 float* const slot =
                     to_slots ? slots.vector(memory.slot()[query] + segment, tile.head_of(query))
                              : nullptr;
                 finish(plan, memory, query, column, sum, slot);
               });
    __syncthreads();
  }
}

// Where the tile's partial results go: rows take slots in order, one a segment. False: they do not
// all fit, and the tile is walked. The first block of the tile notes it for the merge.
__device__ bool take_slots(const PagedAttentionArgs& args, const AttentionPlan& plan,
                           const QueryTile& tile, const Memory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) *memory.total() = 0;
  __syncthreads();
  int before = 0;
  for (int row = thread; row < tile.row; row += static_cast<int>(blockDim.x)) {
    before += segments_of(seen_by_row(args, row));
  }
  if (before > 0) atomicAdd(memory.total(), before);
  __syncthreads();
  int next = *memory.total(), slot = 0, first = 0;
  for (int i = 0; i < tile.rows; ++i) {
    const PositionRange seen = seen_by_row(args, tile.row + i);
    if (i == thread) slot = next, first = seen.first / kKvSegment;
    next += segments_of(seen);
  }
  const bool fits = next <= plan.slots;
  if (thread < tile.rows) {
    for (int head = 0; head < tile.heads; ++head) {
      memory.slot()[thread * tile.heads + head] = slot - first;
    }
    if (blockIdx.y == 0 && blockIdx.z == 0) {
      Slots(args, plan).table()[tile.row + thread] = fits ? slot : kWalked;
    }
  }
  return fits;
}

__device__ void write_out(const PagedAttentionArgs& args, const AttentionPlan& plan,
                          const QueryTile& tile, const Memory& memory) {
  const int head_dim = args.cache.head_dim, items = tile.queries() * head_dim;
  for (int item = static_cast<int>(threadIdx.x); item < items;
       item += static_cast<int>(blockDim.x)) {
    const int query = item / head_dim, column = item % head_dim;
    float* out =
        args.out + tile.row_of(query) * args.out_stride + int64_t{tile.head_of(query)} * head_dim;
    out[column] =
        __fmul_rn(memory.acc()[query * plan.padded + column], __fdiv_rn(1.0f, memory.sum()[query]));
  }
}

// How many segments the tile's rows see together; 0 without rows.
__device__ int segments_of_tile(const PagedAttentionArgs& args, const QueryTile& tile) {
  if (tile.rows == 0) return 0;
  PositionRange all = seen_by_row(args, tile.row);
  for (int i = 1; i < tile.rows; ++i) {
    const PositionRange seen = seen_by_row(args, tile.row + i);
    all = {min(all.first, seen.first), max(all.last, seen.last)};
  }
  return segments_of(all);
}

template <typename T>
__global__ void __launch_bounds__(kMaxThreads, 2)
    attend_tiles(const PagedAttentionArgs args, const AttentionPlan plan) {
  GPU_DYNAMIC_SHARED(float, shared);
  const Memory memory{shared, plan};
  if (threadIdx.x == 0) {
    QueryTile found = find_tile(args, plan);
    // The plan divides the longest context that the block tables allow: here there may be less.
    const int part = static_cast<int>(blockIdx.z);
    if (part > 0 && part >= segments_of_tile(args, found)) found.rows = 0;
    *memory.queries() = found;
  }
  __syncthreads();
  const QueryTile& tile = *memory.queries();
  if (tile.rows == 0) return;
  load_queries(args, plan, tile, memory);
  const bool to_slots = plan.split > 1 && take_slots(args, plan, tile, memory);
  if (!to_slots && blockIdx.z != 0) return;
  __syncthreads();
  const PositionRange seen =
      seen_by_any(memory.first(), memory.last(), tile.queries(), 0, INT32_MAX);
  const int begin = to_slots ? static_cast<int>(blockIdx.z) : 0, step = to_slots ? plan.split : 1;
  for (int segment = seen.first / kKvSegment + begin; segment <= (seen.last - 1) / kKvSegment;
       segment += step) {
    attend_segment<T>(args, plan, tile, memory, segment, to_slots);
  }
  if (!to_slots) write_out(args, plan, tile, memory);
}

// What a warp carries while it merges a row's segments for one head. Nothing yet is -0, the number
// that leaves every other one as it is when added.
struct Merged {
  float max = 0;
  float sum = -0.0f;
  float4 acc = {-0.0f, -0.0f, -0.0f, -0.0f};
};

// Merges `count` <= 32 segments from `slot` on into `so_far`: lane i works out the weights of
// segment i, all lanes apply them in order to the 4 columns from `column` on.
__device__ __forceinline__ void merge_slots(const Slots& slots, int slot, int count, int head,
                                            int column, bool starts, Merged& so_far) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* const scalar = slots.scalar(slot + min(lane, count - 1), head);
  const float max = scalar[0], sum = scalar[1];
  const float carried = starts ? max : so_far.max;
  float after =
      lane == 0 && carried > max ? carried : max;  // the running maximum with this segment
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const float earlier = __shfl_up_sync(kFullWarp, after, apart);
    if (lane >= apart && earlier > after) after = earlier;
  }
  const float above = __shfl_up_sync(kFullWarp, after, 1);
  const float keep = exp_f32(__fsub_rn(lane == 0 ? carried : above, after));
  const float take = exp_f32(__fsub_rn(max, after));
  so_far.max = __shfl_sync(kFullWarp, after, count - 1);
  column = min(column, slots.plan.padded - 4);  // lanes behind the last column repeat it
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const float keep_i = __shfl_sync(kFullWarp, keep, i), take_i = __shfl_sync(kFullWarp, take, i);
    const float sum_i = __shfl_sync(kFullWarp, sum, i);
    const float4 part = *reinterpret_cast<const float4*>(slots.vector(slot + i, head) + column);
    so_far.sum = __fmaf_rn(so_far.sum, keep_i, __fmul_rn(sum_i, take_i));
    so_far.acc.x = __fmaf_rn(so_far.acc.x, keep_i, __fmul_rn(part.x, take_i));
    so_far.acc.y = __fmaf_rn(so_far.acc.y, keep_i, __fmul_rn(part.y, take_i));
    so_far.acc.z = __fmaf_rn(so_far.acc.z, keep_i, __fmul_rn(part.z, take_i));
    so_far.acc.w = __fmaf_rn(so_far.acc.w, keep_i, __fmul_rn(part.w, take_i));
  }
}

// A warp a row and head; rows that were walked are done.
__global__ void __launch_bounds__(kMergeThreads)
    merge_partials(const PagedAttentionArgs args, const AttentionPlan plan) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int index = static_cast<int>(blockIdx.x * (kMergeThreads / kWarp) + threadIdx.x / kWarp);
  const int row = index / args.heads, head = index % args.heads;
  if (row >= args.rows) return;
  const Slots slots(args, plan);
  const int first = slots.table()[row];
  if (first == kWalked) return;
  const int segments = segments_of(seen_by_row(args, row)), head_dim = args.cache.head_dim;
  float* out = args.out + row * args.out_stride + int64_t{head} * head_dim;
  for (int at = 0; at < plan.padded; at += 4 * kWarp) {
    const int column = at + 4 * lane;
    Merged merged;
    for (int done = 0; done < segments; done += kWarp) {
      merge_slots(slots, first + done, min(kWarp, segments - done), head, column, done == 0,
                  merged);
    }
    const float inverse = __fdiv_rn(1.0f, merged.sum);
    const float values[4] = {merged.acc.x, merged.acc.y, merged.acc.z, merged.acc.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i < head_dim) out[column + i] = __fmul_rn(values[i], inverse);
    }
  }
}

template <typename T>
cudaError_t run(cudaStream_t stream, const PagedAttentionArgs& args, const AttentionPlan& plan) {
  void (*const kernel)(PagedAttentionArgs, AttentionPlan) = attend_tiles<T>;
  cudaError_t error = allow_shared_memory(reinterpret_cast<const void*>(kernel), plan.shared_bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(args.rows, args.cache.kv_heads * plan.head_parts, plan.split);
  error = launch(kernel, grid, dim3(plan.threads), plan.shared_bytes, stream, args, plan);
  if (error != cudaSuccess || plan.split == 1) return error;
  const int64_t warps = int64_t{args.rows} * args.heads;
  return launch(merge_partials, dim3(ceil_div(warps, kMergeThreads / kWarp)), dim3(kMergeThreads),
                0, stream, args, plan);
}

}  // namespace

cudaError_t paged_attention(cudaStream_t stream, const PagedAttentionArgs& args) {
  const AttentionPlan plan = plan_attention(args);
  return with_element(args.cache.dtype, [&](auto element) {
    return run<decltype(element)>(stream, args, plan);
  });
}

}  // namespace brigade::kernels::cuda
