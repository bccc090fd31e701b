// RMS norm of one row by one block. The sum of squares is 16 chains over the whole row, whatever
// the block: the block loads, and its first warp adds from shared memory, tile by tile, while the
// next tile is on its way.
#pragma once

#include "kernels/cuda/lanes16.cuh"
#include "kernels/cuda/quads.cuh"

namespace brigade::kernels::cuda {

inline constexpr int kNormThreads =
    256;  // a tile is one quad a thread: 1024 columns, 64 steps a lane
inline constexpr int kNormTile = kNormThreads * kQuad;
static_assert(kNormTile % kLanes == 0, "a tile starts at lane 0");

// Called by the first warp; both of its halves hold the same 16 lanes.
__device__ __forceinline__ float add_squares(const float* tile, int columns, float sum) {
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x) % kLanes; i < columns; i += kLanes) {
    sum = mul_add(tile[i], tile[i], sum);
  }
  return sum;
}

// 1 / sqrt(mean(v^2) + eps) over the row whose quads `values(column)` gives, zero past `width`.
// Every thread of a block of kNormThreads calls it and gets the same number. values() is called
// once a quad, each column by one thread: the same that later handles it in steps of kNormTile.
template <class Values>
__device__ float inverse_rms(const Values& values, int width, float eps) {
  GPU_SHARED(float4, tiles, 2 * kNormThreads);
  GPU_SHARED(float, inverse, 1);
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  float sum = 0;
  float4 next = values(first);
  for (int start = 0; start < width; start += kNormTile) {
    // The other tile may still be read: the first warp has passed the barrier before that.
    float4* tile = tiles + start / kNormTile % 2 * kNormThreads;
    tile[threadIdx.x] = next;
    if (start + kNormTile < width) next = values(start + kNormTile + first);
    __syncthreads();
    if (threadIdx.x < kWarp) {
      const int columns = min(kNormTile, width - start);
      sum = add_squares(reinterpret_cast<const float*>(tile), columns, sum);
    }
  }
  if (threadIdx.x < kWarp) {
    const float mean = __fdiv_rn(sum16(sum), static_cast<float>(width));
    if (threadIdx.x == 0) inverse[0] = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
  }
  __syncthreads();
  return inverse[0];
}

__device__ __forceinline__ float4 normed(float4 x, float inverse, float4 weight) {
  return make_float4(
      __fmul_rn(__fmul_rn(x.x, inverse), weight.x), __fmul_rn(__fmul_rn(x.y, inverse), weight.y),
      __fmul_rn(__fmul_rn(x.z, inverse), weight.z), __fmul_rn(__fmul_rn(x.w, inverse), weight.w));
}

}  // namespace brigade::kernels::cuda
