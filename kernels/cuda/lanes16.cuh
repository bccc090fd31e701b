// The 16 virtual lanes of the numerics contract on a warp: half a warp is one set of lanes, so a
// warp holds two. Element i of a row belongs to lane i mod 16; each lane is one chain in rising i;
// the lanes are joined over one tree, pairs 8, 4, 2, 1 apart. All 32 threads call these together.
#pragma once

#include "kernels/cuda/gpu.cuh"

namespace brigade::kernels::cuda {

inline constexpr int kLanes = 16;  // virtual lanes of a sum
inline constexpr unsigned kFullWarp = 0xFFFFFFFFu;

// The sum over the thread's half-warp, in each of its threads. Both threads of a pair add the same
// two numbers, and addition commutes: every thread gets the bits of the tree.
__device__ __forceinline__ float sum16(float lane) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    lane = __fadd_rn(lane, __shfl_xor_sync(kFullWarp, lane, apart));
  }
  return lane;
}

// The same tree over 16 lanes that one thread holds; `lanes` is used up.
__device__ __forceinline__ float sum16(float (&lanes)[kLanes]) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
#pragma unroll
    for (int i = 0; i < apart; ++i) lanes[i] = __fadd_rn(lanes[i], lanes[i + apart]);
  }
  return lanes[0];
}

// The largest over the thread's half-warp; no lane may be NaN.
__device__ __forceinline__ float largest16(float lane) {
#pragma unroll
  for (int apart = kLanes / 2; apart > 0; apart /= 2) {
    lane = fmaxf(lane, __shfl_xor_sync(kFullWarp, lane, apart));
  }
  return lane;
}

}  // namespace brigade::kernels::cuda
