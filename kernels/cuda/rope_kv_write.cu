#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/math.cuh"

namespace brigade::kernels::cuda {
namespace {

constexpr int kHeadsPerBlock = 4;  // a warp a head; one row of 48 heads fills 12 blocks

struct Pair {
  float a, b;
};

// One product is rounded, the other fused, in both: as kernels/cpu/rope_kv_write.cc.
__device__ __forceinline__ Pair rotate(Pair x, float cos, float sin) {
  return {__fmaf_rn(x.a, cos, -__fmul_rn(x.b, sin)), __fmaf_rn(x.b, cos, __fmul_rn(x.a, sin))};
}

// Rotates one head of `row`, narrows it to T; each lane owns its pairs, so `to` may be `from`.
template <typename T>
__device__ void rotate_head(const RopeKvWriteArgs& args, int64_t position, const float* from, T* to,
                            bool copy_rest) {
  const int lane = threadIdx.x % kWarp;
  const int half = args.rotary_dim / 2;
  const bool split = args.pairing == RopePairing::kSplitHalves;
  const float* cos = args.cos_table + position * half;
  const float* sin = args.sin_table + position * half;
  for (int i = lane; i < half; i += kWarp) {
    const int a = split ? i : 2 * i;
    const int b = split ? i + half : 2 * i + 1;
    const Pair turned = rotate({from[a], from[b]}, cos[i], sin[i]);
    to[a] = narrow<T>(turned.a);
    to[b] = narrow<T>(turned.b);
  }
  if (!copy_rest) return;
  for (int i = args.rotary_dim + lane; i < args.cache.head_dim; i += kWarp) {
    to[i] = narrow<T>(from[i]);
  }
}

// Where `head` of the row's slot begins in the cache; values follow the keys.
template <typename T>
__device__ T* cache_head(const KvLayerView& cache, int64_t slot, int64_t head, bool values) {
  const int64_t block = slot / cache.block_size;
  const int64_t offset = slot - block * cache.block_size;
  if (block >= cache.num_blocks) __trap();
  T* keys = reinterpret_cast<T*>(static_cast<char*>(cache.data) + block * cache.block_stride_bytes);
  const int64_t head_index = values ? cache.kv_heads + head : head;
  return keys + (head_index * cache.block_size + offset) * cache.head_dim;
}

// A warp's head counts through the row's query heads, then its key heads, then its value heads.
template <typename T>
__global__ void __launch_bounds__(kHeadsPerBlock* kWarp)
    rope_kv_write_kernel(RopeKvWriteArgs args, int blocks_per_row) {
  const KvLayerView& cache = args.cache;
  const int64_t row = blockIdx.x / blocks_per_row;
  const int first = static_cast<int>(blockIdx.x - row * blocks_per_row) * kHeadsPerBlock;
  int head = first + static_cast<int>(threadIdx.x) / kWarp;
  const int64_t position = args.positions[row];
  if (position < 0 || position >= args.max_positions) __trap();
  if (head < args.heads) {
    float* q = args.q + row * args.q_stride + static_cast<int64_t>(head) * cache.head_dim;
    rotate_head(args, position, q, q, false);
    return;
  }
  head -= args.heads;
  const int64_t slot = args.slots[row];
  if (slot < 0 || head >= 2 * cache.kv_heads) return;
  if (head < cache.kv_heads) {
    const float* k = args.k + row * args.k_stride + static_cast<int64_t>(head) * cache.head_dim;
    rotate_head(args, position, k, cache_head<T>(cache, slot, head, false), true);
    return;
  }
  head -= cache.kv_heads;
  const float* v = args.v + row * args.v_stride + static_cast<int64_t>(head) * cache.head_dim;
  T* to = cache_head<T>(cache, slot, head, true);
  for (int i = threadIdx.x % kWarp; i < cache.head_dim; i += kWarp) to[i] = narrow<T>(v[i]);
}

template <typename T>
cudaError_t run(cudaStream_t stream, const RopeKvWriteArgs& args) {
  const int heads = args.heads + 2 * args.cache.kv_heads;
  const int blocks_per_row = static_cast<int>(ceil_div(heads, kHeadsPerBlock));
  const auto blocks = static_cast<unsigned>(int64_t{args.rows} * blocks_per_row);
  return launch(rope_kv_write_kernel<T>, dim3(blocks), dim3(kHeadsPerBlock * kWarp), 0, stream,
                args, blocks_per_row);
}

}  // namespace

cudaError_t rope_kv_write(cudaStream_t stream, const RopeKvWriteArgs& args) {
  return with_element(args.cache.dtype, [&](auto element) {
    return run<decltype(element)>(stream, args);
  });
}

}  // namespace brigade::kernels::cuda
