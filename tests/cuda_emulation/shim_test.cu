// The shim against plain C++: barriers, warp operations, shared memory and fragments give what a
// device gives, whatever the order of threads; what a device forbids is a fault.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cuda/gpu.cuh"
#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/runtime/control.h"

namespace {

using brigade::cuda_emulation::DeviceArray;
using brigade::cuda_emulation::launch;
using brigade::cuda_emulation::reset_faults;
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
  const DeviceArray<__nv_bfloat16> device_in(in);
  std::vector<float> first;
  for (int seed = 0; seed < kSeeds; ++seed) {
    set_schedule_seed(seed);
    const DeviceArray<float> device_out(kBlocks);
    ASSERT_EQ(launch(block_sum<__nv_bfloat16>, kBlocks, 256, 0, nullptr, device_in.data(),
                     device_out.data(), kColumns),
              cudaSuccess);
    const std::vector<float> out = device_out.read();
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
  const DeviceArray<int> device_values(values), device_counts(counts);
  ASSERT_EQ(launch(histogram, 4, 96, 17 * sizeof(int), nullptr, device_values.data(), 5000, 17,
                   device_counts.data()),
            cudaSuccess);
  EXPECT_EQ(device_counts.read(), expected);
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
    const DeviceArray<unsigned> device_out(9 * 32);
    ASSERT_EQ(launch(warp_operations, 1, 32, 0, nullptr, device_out.data()), cudaSuccess);
    const std::vector<unsigned> out = device_out.read();
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
  std::vector<__half> a(16 * kK), b(16 * kK);
  for (int i = 0; i < 16 * kK; ++i) {
    a[i] = __float2half(static_cast<float>(i % 13) - 6);
    b[i] = __float2half(static_cast<float>(i % 7) - 3);
  }
  const DeviceArray<__half> device_a(a), device_b(b);
  const DeviceArray<float> device_c(16 * 16);
  ASSERT_EQ(launch(tile_product<__half>, 1, 32, 0, nullptr, device_a.data(), device_b.data(),
                   device_c.data(), kK),
            cudaSuccess);
  const std::vector<float> c = device_c.read();
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
__global__ void copy_one(const float* in, float* out) { *out = *in; }
__global__ void wrong_mask(int* out) { *out = __shfl_sync(0xFFFF0000u, 1, 0); }

// What the launch ends with once the stream has got to it.
template <typename... Parameters, typename... Arguments>
cudaError_t outcome(void (*kernel)(Parameters...), unsigned threads, size_t shared,
                    Arguments... arguments) {
  const cudaError_t queued = launch(kernel, 1, threads, shared, nullptr, arguments...);
  const cudaError_t done = cudaDeviceSynchronize();
  EXPECT_EQ(cudaGetLastError(), queued != cudaSuccess ? queued : done);
  reset_faults();
  return queued != cudaSuccess ? queued : done;
}

TEST(CudaShim, WhatADeviceForbidsIsAFault) {
  const DeviceArray<float> out(64);
  const DeviceArray<int> numbers(64);
  std::vector<float> host(64);
  for (int seed = 0; seed < kSeeds; ++seed) {
    set_schedule_seed(seed);
    EXPECT_EQ(outcome(divergent, 64, 0, out.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(outcome(waits_for_ever, 32, 0, numbers.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(outcome(leaves_early, 64, 0, numbers.data()), cudaSuccess);
    EXPECT_EQ(outcome(wrong_mask, 32, 0, numbers.data()), cudaErrorLaunchFailure);
    EXPECT_EQ(outcome(copy_one, 1, 0, host.data(), out.data()), cudaErrorIllegalAddress);
#if !defined(__SANITIZE_ADDRESS__)  // the sanitizers end the process
    EXPECT_EQ(outcome(copy_one, 1, 0, nullptr, out.data()), cudaErrorIllegalAddress);
    EXPECT_EQ(outcome(writes_past_shared, 32, 32 * sizeof(float)), cudaErrorIllegalAddress);
#endif
    EXPECT_EQ(outcome(leaves_early, 1025, 0, numbers.data()), cudaErrorInvalidConfiguration);
    EXPECT_EQ(outcome(leaves_early, 32, 49 << 10, numbers.data()), cudaErrorInvalidValue);
  }
  EXPECT_EQ(
      cudaFuncSetAttribute(leaves_early, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
      cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(
      cudaFuncSetAttribute(leaves_early, cudaFuncAttributeMaxDynamicSharedMemorySize, 49 << 10),
      cudaSuccess);
  EXPECT_EQ(outcome(leaves_early, 32, 49 << 10, numbers.data()), cudaSuccess);
}

__global__ void many_blocks(int* out) {
  out[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = 1;
}

TEST(CudaShim, ThreadsWithoutBarriersAreCheap) {
  const DeviceArray<int> device_out(size_t{64} * 16 * 256);
  ASSERT_EQ(launch(many_blocks, dim3(64, 16), 256, 0, nullptr, device_out.data()), cudaSuccess);
  const std::vector<int> out = device_out.read();
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0), static_cast<int>(out.size()));
}

}  // namespace
