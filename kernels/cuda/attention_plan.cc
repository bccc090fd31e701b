#include "kernels/cuda/attention_plan.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "kernels/cuda/cuda_kernels.h"

namespace brigade::kernels::cuda {
namespace {

// From so many blocks on, the largest GPUs (132 to 148 multiprocessors) are busy without dividing
// the segments of a tile. Small blocks wait for memory most of the time, and their sequences differ
// in length: it takes more of them.
constexpr int64_t kEnoughBlocks = 512;
constexpr int64_t kEnoughSmallBlocks = 2048;
// Blocks to make when segments are divided: several waves, so that unequal lengths even out.
constexpr int64_t kSplitBlocks = 2048;
// Shared memory of a tile of keys or values; leaves room for three or more blocks a multiprocessor.
constexpr int64_t kTileBytes = 34 << 10;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t longest_segments(const PagedAttentionArgs& args) {
  const int64_t positions = int64_t{args.max_blocks} * args.cache.block_size;
  // A window that begins inside a segment touches one segment more.
  const int64_t seen =
      args.window > 0 ? std::min<int64_t>(positions, int64_t{args.window} + kKvSegment) : positions;
  return ceil_div(seen, kKvSegment);
}

// The smallest block that takes an average sequence's rows at once; more queries share each load of
// keys and values, but take shared memory from other blocks.
int choose_queries(const PagedAttentionArgs& args, int padded) {
  const int64_t group = args.heads / args.cache.kv_heads;
  const int64_t together = group * ceil_div(args.rows, args.sequences);
  const int most = padded <= 128 ? 32 : padded <= 256 ? 16 : 8;
  int queries = 8;
  while (queries < most && queries < together) queries *= 2;
  return queries;
}

int choose_tile_positions(int queries, int padded) {
  int positions = queries > 8 ? 32 : 64;
  const int64_t row_bytes = int64_t{padded + 4} * int64_t{sizeof(float)};
  while (positions > 16 && positions * row_bytes > kTileBytes) positions /= 2;
  return positions;
}

void place_arrays(AttentionPlan& plan) {
  plan.stride = plan.padded + 4;  // rows begin 4 banks apart
  plan.weight_stride = plan.queries + 4;
  int next = kKvSegment * static_cast<int>(sizeof(int64_t) / sizeof(float));
  const auto take = [&next](int floats) {
    const int taken = next;
    next += floats;
    return taken;
  };
  plan.q_at = take(plan.queries * plan.stride);
  plan.tile_at = take(plan.tile_positions * plan.stride);
  plan.acc_at = take(plan.queries * plan.padded);
  plan.partial_at = take(plan.queries * plan.padded);
  plan.weights_at = take(kKvSegment * plan.weight_stride);
  plan.scalars_at = take(kQueryScalars * plan.queries + kBlockScalars);
  plan.shared_bytes = next * sizeof(float);
}

}  // namespace

void divide_rows(const PagedAttentionArgs& args, int queries, AttentionPlan& plan) {
  const KvLayerView& cache = args.cache;
  const int group = args.heads / cache.kv_heads;
  const auto element = static_cast<int64_t>(dtype_bytes(cache.dtype));
  plan.padded = padded_head_dim(cache.head_dim);
  plan.queries = queries;
  plan.rows_per_tile = std::max(1, queries / group);
  plan.head_parts = static_cast<int>(ceil_div(group, queries));
  plan.wide_loads = cache.head_dim * element % 16 == 0 && cache.block_stride_bytes % 16 == 0 &&
                    reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
}

int64_t most_blocks(const PagedAttentionArgs& args, const AttentionPlan& plan) {
  const int64_t tiles =
      std::min<int64_t>(args.rows, ceil_div(args.rows, plan.rows_per_tile) + args.sequences);
  return tiles * args.cache.kv_heads * plan.head_parts;
}

AttentionPlan plan_attention(const PagedAttentionArgs& args) {
  AttentionPlan plan;
  const int padded = padded_head_dim(args.cache.head_dim);
  divide_rows(args, choose_queries(args, padded), plan);
  plan.tile_positions = choose_tile_positions(plan.queries, padded);
  plan.threads = plan.queries > 8 ? 256 : 128;
  place_arrays(plan);
  const size_t table = slot_table_bytes(args.rows);
  plan.table_bytes = static_cast<int64_t>(table);
  const size_t left = args.scratch_bytes > table ? args.scratch_bytes - table : 0;
  plan.slots =
      static_cast<int>(std::min<int64_t>(kMaxPartialSlots, left / slot_bytes(args.heads, padded)));
  const int64_t blocks = most_blocks(args, plan), segments = longest_segments(args);
  plan.split = 1;
  const int64_t enough = plan.queries > 8 ? kEnoughBlocks : kEnoughSmallBlocks;
  if (plan.slots > 0 && segments > 1 && blocks < enough) {
    plan.split = static_cast<int>(std::min(segments, ceil_div(kSplitBlocks, blocks)));
  }
  return plan;
}

size_t most_shared_memory() {
  int device = 0, most = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  const cudaError_t error =
      cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return error == cudaSuccess ? static_cast<size_t>(most) : 0;
}

// Once a kernel and GPU, and as much as there is: the limit is the kernel's, not the launch's, so a
// stream that needs less must not lower it under another thread's launch.
cudaError_t allow_shared_memory(const void* kernel, size_t bytes) {
  constexpr size_t kWithoutAsking = size_t{48} << 10;
  if (bytes <= kWithoutAsking) return cudaSuccess;
  const size_t most = most_shared_memory();
  if (bytes > most) return cudaErrorInvalidConfiguration;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard<std::mutex> lock(mutex);
  if (allowed.count({kernel, device}) > 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(most));
  if (error == cudaSuccess) allowed.insert({kernel, device});
  return error;
}

size_t attention_scratch_bytes(int max_rows, int heads, int head_dim) {
  const size_t slot = slot_bytes(heads, padded_head_dim(head_dim));
  const auto slots = std::min<int64_t>(kMaxPartialSlots, kMaxPartialBytes / slot);
  return slot_table_bytes(std::max(max_rows, 1)) + std::max<int64_t>(slots, 1) * slot;
}

}  // namespace brigade::kernels::cuda
