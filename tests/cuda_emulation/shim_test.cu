// The shim against plain C++: barriers, warp operations, shared memory and fragments give what a
// device gives, whatever the order of threads; what a device forbids is a fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/gpu.cuh"

namespace {

using brigade::cuda_emulation::launch;
using brigade::cuda_emulation::set_schedule_seed;

constexpr unsigned kAllLanes = 0xFFFFFFFFu;
constexpr int kSeeds = 6;

__device__ float warp_sum(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(kAllLanes, value, offset);
  return value;
}

template <typename T>
__global__ void block_sum(const T* in, float* out, int n) {
  GPU_SHARED(float, partial, 32);
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    sum += static_cast<float>(in[blockIdx.x * n + i]);
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  sum = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

TEST(CudaShim, BlockReductionHasEqualBitsInEveryOrder) {
  constexpr int kBlocks = 3, kColumns = 1000;
  std::vector<__nv_bfloat16> in(kBlocks * kColumns);
  for (size_t i = 0; i < in.size(); ++i) in[i] = __float2bfloat16(std::sin(static_cast<float>(i)));
  std::vector<float> first;
  for (int seed = 0; seed < kSeeds; ++seed) {
    set_schedule_seed(seed);
    std::vector<float> out(kBlocks, -1);
    ASSERT_EQ(
        launch(block_sum<__nv_bfloat16>, kBlocks, 256, 0, nullptr, in.data(), out.data(), kColumns),
        cudaSuccess);
    if (seed == 0) first = out;
    EXPECT_EQ(out, first) << "seed " << seed;
    for (int block = 0; block < kBlocks; ++block) {
      double sum = 0;
      for (int i = 0; i < kColumns; ++i) sum += static_cast<float>(in[block * kColumns + i]);
      EXPECT_NEAR(out[block], sum, 1e-4);
    }
  }
}

__global__ void histogram(const int* values, int n, int buckets, int* counts) {
  GPU_DYNAMIC_SHARED(int, local);
  for (int i = threadIdx.x; i < buckets; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    atomicAdd(&local[values[i]], 1);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < buckets; i += blockDim.x) atomicAdd(&counts[i], local[i]);
}

TEST(CudaShim, AtomicsAndDynamicSharedMemory) {
  std::vector<int> values(5000), expected(17), counts(17);
  for (size_t i = 0; i < values.size(); ++i) ++expected[values[i] = static_cast<int>(i * i % 17)];
  ASSERT_EQ(
      launch(histogram, 4, 96, 17 * sizeof(int), nullptr, values.data(), 5000, 17, counts.data()),
      cudaSuccess);
  EXPECT_EQ(counts, expected);
}

__global__ void warp_operations(unsigned* out) {
  const unsigned lane = threadIdx.x;
  unsigned* row = out + lane;
  row[0 * 32] = __ballot_sync(kAllLanes, lane % 3 == 0);
  row[1 * 32] = __shfl_up_sync(kAllLanes, lane, 5, 16);
  row[2 * 32] = __shfl_down_sync(kAllLanes, lane, 5, 16);
  row[3 * 32] = __shfl_sync(kAllLanes, lane, 9, 8);
  row[4 * 32] = __match_any_sync(kAllLanes, lane % 4);
  row[5 * 32] = __reduce_max_sync(kAllLanes, lane * 7 % 32);
  // Two halves in operations of their own, side by side.
  const unsigned half = lane < 16 ? 0x0000FFFFu : 0xFFFF0000u;
  row[6 * 32] = __reduce_add_sync(half, lane);
  row[7 * 32] = static_cast<unsigned>(__all_sync(half, lane < 16));
  row[8 * 32] = static_cast<unsigned>(__syncthreads_count(lane < 11));
}

TEST(CudaShim, WarpOperations) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    set_schedule_seed(seed);
    std::vector<unsigned> out(9 * 32);
    ASSERT_EQ(launch(warp_operations, 1, 32, 0, nullptr, out.data()), cudaSuccess);
    for (unsigned lane = 0; lane < 32; ++lane) {
      EXPECT_EQ(out[lane], 0x49249249u);
      EXPECT_EQ(out[32 + lane], lane % 16 >= 5 ? lane - 5 : lane);
      EXPECT_EQ(out[64 + lane], lane % 16 < 11 ? lane + 5 : lane);
      EXPECT_EQ(out[96 + lane], lane / 8 * 8 + 1);
      EXPECT_EQ(out[128 + lane], 0x11111111u << (lane % 4));
      EXPECT_EQ(out[160 + lane], 31u);
      EXPECT_EQ(out[192 + lane], lane < 16 ? 120u : 376u);
      EXPECT_EQ(out[224 + lane], lane < 16 ? 1u : 0u);
      EXPECT_EQ(out[256 + lane], 11u);
    }
  }
}

template <typename T>
__global__ void tile_product(const T* a, const T* b, float* c, int k_total) {
  namespace wmma = nvcuda::wmma;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < k_total; k += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> right;
    wmma::load_matrix_sync(left, a + k, k_total);
    wmma::load_matrix_sync(right, b + k, k_total);
    wmma::mma_sync(sum, left, right, sum);
  }
  for (int i = 0; i < sum.num_elements; ++i) sum.x[i] *= 2.0f;
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_row_major);
}

TEST(CudaShim, MatrixFragments) {
  constexpr int kK = 48;
  alignas(32) __half a[16 * kK], b[16 * kK];
  alignas(32) float c[16 * 16];
  for (int i = 0; i < 16 * kK; ++i) {
    a[i] = __float2half(static_cast<float>(i % 13) - 6);
    b[i] = __float2half(static_cast<float>(i % 7) - 3);
  }
  ASSERT_EQ(launch(tile_product<__half>, 1, 32, 0, nullptr, a, b, c, kK), cudaSuccess);
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      float expected = 0;
      for (int k = 0; k < kK; ++k)
        expected += __half2float(a[row * kK + k]) * __half2float(b[column * kK + k]);
      EXPECT_EQ(c[row * 16 + column], 2 * expected) << row << "," << column;
    }
  }
}

__global__ void divergent(float* out) {
  if (threadIdx.x < 40) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}
__global__ void waits_for_ever(int* flag) {
  if (threadIdx.x == 3) __shfl_sync(0x18u, 1, 0);
  __syncthreads();
  *flag = 1;
}
__global__ void leaves_early(int* out) {
  if (threadIdx.x % 2 == 1) return;  // a barrier waits for the threads that are left
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void writes_past_shared() {
  GPU_DYNAMIC_SHARED(float, data);
  data[threadIdx.x + 1] = 1;  // 32 floats
}
__global__ void reads_null(const float* in, float* out) { *out = *in; }
__global__ void wrong_mask(int* out) { *out = __shfl_sync(0xFFFF0000u, 1, 0); }

TEST(CudaShim, WhatADeviceForbidsIsAFault) {
  std::vector<float> out(64);
  std::vector<int> numbers(64);
  for (int seed = 0; seed < kSeeds; ++seed) {
    set_schedule_seed(seed);
    EXPECT_EQ(launch(divergent, 1, 64, 0, nullptr, out.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(launch(waits_for_ever, 1, 32, 0, nullptr, numbers.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(launch(leaves_early, 1, 64, 0, nullptr, numbers.data()), cudaSuccess);
    EXPECT_EQ(launch(wrong_mask, 1, 32, 0, nullptr, numbers.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(launch(reads_null, 1, 1, 0, nullptr, nullptr, out.data()), cudaErrorIllegalAddress);
#if !defined(__SANITIZE_ADDRESS__)  // asan ends the process
    EXPECT_EQ(launch(writes_past_shared, 1, 32, 32 * sizeof(float), nullptr),
              cudaErrorIllegalAddress);
#endif
  }
}

__global__ void many_blocks(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = 1;
}

TEST(CudaShim, ThreadsWithoutBarriersAreCheap) {
  std::vector<int> out(size_t{64} * 16 * 256);
  ASSERT_EQ(launch(many_blocks, dim3(64, 16), 256, 0, nullptr, out.data()), cudaSuccess);
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0), static_cast<int>(out.size()));
}

}  // namespace
