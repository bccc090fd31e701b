// The test of the test: each kernel here has a planted bug as `kBug`, and its corrected twin
// without. Over a few orders of threads the emulation must find every bug and nothing in the twin.
// Here: what goes wrong between the threads of a block, and with memory nobody wrote.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/gpu.cuh"
#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/faults/is_found.h"

namespace {

using namespace brigade::cuda_emulation;

template <bool kBug>
__global__ void reversed(const float* in, float* out) {
  GPU_SHARED(float, tile, kThreads);
  tile[threadIdx.x] = in[threadIdx.x];
  if (!kBug) __syncthreads();
  out[threadIdx.x] = tile[kThreads - 1 - threadIdx.x];
}

TEST(PlantedBug, MissingSyncthreads) {
  const std::vector<float> in = numbers(kThreads);
  const std::vector<float> right(in.rbegin(), in.rend());
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out); },
        right);
  };
  EXPECT_TRUE(run(reversed<true>));
  EXPECT_FALSE(run(reversed<false>));
}

// The second of two barriers around a buffer that is used again and again: without it a fast thread
// overwrites what a slow one has not read.
template <bool kBug>
__global__ void rotated_twice(const float* in, float* out) {
  GPU_SHARED(float, tile, kThreads);
  float value = in[threadIdx.x];
  for (int round = 0; round < 2; ++round) {
    tile[threadIdx.x] = value;
    __syncthreads();
    value = tile[(threadIdx.x + 1) % kThreads];
    if (!kBug) __syncthreads();
  }
  out[threadIdx.x] = value;
}

TEST(PlantedBug, BufferReusedWithoutABarrier) {
  const std::vector<float> in = numbers(kThreads);
  std::vector<float> right(kThreads);
  for (int i = 0; i < kThreads; ++i) right[i] = in[(i + 2) % kThreads];
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out); },
        right);
  };
  EXPECT_TRUE(run(rotated_twice<true>));
  EXPECT_FALSE(run(rotated_twice<false>));
}

template <bool kBug>
__global__ void doubled(const float* in, float* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (!kBug && i >= n) return;
  out[i] = 2 * in[i];
}

// The number of elements is no multiple of the block's: the last threads have none.
TEST(PlantedBug, OutOfBoundsTail) {
  constexpr int kCount = 3 * kThreads - 5;
  const std::vector<float> in = numbers(kCount);
  std::vector<float> right(kCount);
  for (int i = 0; i < kCount; ++i) right[i] = 2 * in[i];
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) {
          return launch(kernel, 3, kThreads, 0, nullptr, device_in.data(), out, kCount);
        },
        right);
  };
#if defined(__SANITIZE_ADDRESS__)
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(run(doubled<true>), "use-after-poison");
#else
  EXPECT_TRUE(run(doubled<true>));
#endif
  EXPECT_FALSE(run(doubled<false>));
}

template <bool kBug>
__global__ void shared_sum(const float* in, float* out, int n) {
  GPU_DYNAMIC_SHARED(float, partial);
  if (!kBug || static_cast<int>(threadIdx.x) < n)
    partial[threadIdx.x] = static_cast<int>(threadIdx.x) < n ? in[threadIdx.x] : 0.0f;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *out = partial[0];
}

TEST(PlantedBug, UninitialisedSharedMemory) {
  std::vector<float> in(100, 0.5f);
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) {
          return launch(kernel, 1, kThreads, kThreads * sizeof(float), nullptr, device_in.data(),
                        out, 100);
        },
        {50.0f});
  };
  EXPECT_TRUE(run(shared_sum<true>));
  EXPECT_FALSE(run(shared_sum<false>));
}

template <bool kBug>
__global__ void accumulated(const float* in, float* out) {
  if (kBug) {
    out[threadIdx.x] += in[threadIdx.x];  // nobody has set it to zero
  } else {
    out[threadIdx.x] = in[threadIdx.x];
  }
}

TEST(PlantedBug, UninitialisedDeviceMemory) {
  const std::vector<float> in = numbers(kThreads);
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out); },
        in);
  };
  EXPECT_TRUE(run(accumulated<true>));
  EXPECT_FALSE(run(accumulated<false>));
}

template <bool kBug>
__global__ void running_sum(const float* in, float* out) {
  float sums[4];  // registers
  for (int i = 0; i < 4; ++i) {
    if (!kBug) sums[i] = 0;
    sums[i] += in[(threadIdx.x + i) % kThreads];
  }
  out[threadIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}

TEST(PlantedBug, UninitialisedLocal) {
  const DeviceArray<float> device_in(std::vector<float>(kThreads, 0.25f));
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out); },
        std::vector<float>(kThreads, 1.0f));
  };
  EXPECT_TRUE(run(running_sum<true>));
  EXPECT_FALSE(run(running_sum<false>));
}

template <bool kBug>
__global__ void sum_of_first(const float* in, float* out, int n) {
  GPU_SHARED(float, tile, kThreads);
  if (kBug) {
    if (static_cast<int>(threadIdx.x) < n) {
      tile[threadIdx.x] = in[threadIdx.x];
      __syncthreads();
    } else {
      tile[threadIdx.x] = 0;
      __syncthreads();
    }
  } else {
    tile[threadIdx.x] = static_cast<int>(threadIdx.x) < n ? in[threadIdx.x] : 0;
    __syncthreads();
  }
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += tile[i];
  out[threadIdx.x] = sum;
}

TEST(PlantedBug, DivergentSyncthreads) {
  const DeviceArray<float> device_in(std::vector<float>(kThreads, 1.0f));
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) {
          return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out, 50);
        },
        std::vector<float>(kThreads, 50.0f));
  };
  EXPECT_TRUE(run(sum_of_first<true>));
  EXPECT_FALSE(run(sum_of_first<false>));
}

// The bits of a float sum by atomics depend on who comes first.
template <bool kBug>
__global__ void total(const float* in, float* out) {
  if (threadIdx.x == 0) *out = 0;
  __syncthreads();
  if (kBug) {
    atomicAdd(out, in[threadIdx.x]);
  } else if (threadIdx.x == 0) {
    for (int i = 0; i < kThreads; ++i) *out += in[i];
  }
}

TEST(PlantedBug, SumInTheOrderOfArrival) {
  const std::vector<float> in = numbers(kThreads);
  float right = 0;
  for (const float value : in) right += value;
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, kThreads, 0, nullptr, device_in.data(), out); },
        {right});
  };
  EXPECT_TRUE(run(total<true>));
  EXPECT_FALSE(run(total<false>));
}

}  // namespace
