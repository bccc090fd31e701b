// The test of the test: planted bugs in what kernels access. Memory of the host or of another
// device, vectors at addresses that are not theirs, lanes that are not there.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/gpu.cuh"
#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/faults/is_found.h"

namespace {

using namespace brigade::cuda_emulation;

struct ScaleArgs {
  const float* in;  // [n]
  float* out;       // [n]
  int n;
};
__global__ void scaled(ScaleArgs args) {
  if (static_cast<int>(threadIdx.x) < args.n) args.out[threadIdx.x] = 2 * args.in[threadIdx.x];
}

// Hidden in a struct of arguments, too.
TEST(PlantedBug, HostMemoryGivenToAKernel) {
  const std::vector<float> in = numbers(kThreads);
  std::vector<float> right(kThreads);
  for (int i = 0; i < kThreads; ++i) right[i] = 2 * in[i];
  const DeviceArray<float> device_in(in);
  const auto run = [&](const float* from) {
    return is_found(
        [&](float* out) {
          return launch(scaled, 1, kThreads, 0, nullptr, ScaleArgs{from, out, kThreads});
        },
        right);
  };
  EXPECT_TRUE(run(in.data()));
  EXPECT_FALSE(run(device_in.data()));
}

// Memory of one device used on another: without peer access it is out of reach.
TEST(PlantedBug, MemoryOfAnotherDevice) {
  const std::vector<float> in = numbers(kThreads);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  float* far = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&far), kThreads * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_TRUE(is_found(
      [&](float* out) {
        return launch(scaled, 1, kThreads, 0, nullptr, ScaleArgs{far, out, kThreads});
      },
      in));
  EXPECT_EQ(cudaFree(far), cudaSuccess);
}

// Pointers in arrays of structs are seen. Numbers are not taken for them, whatever they look like,
// nor is what lies in padding.
struct Part {
  const float* from;
  short first, count;  // padding behind
};
struct PartsArgs {
  bool twice;  // padding behind
  Part part[3];
  unsigned low, high;  // side by side: one word
  float* out;
};
__global__ void gathered(PartsArgs args) {
  for (const Part& part : args.part) {
    const int i = static_cast<int>(threadIdx.x) - part.first;
    if (i >= 0 && i < part.count) args.out[threadIdx.x] = (args.twice ? 2 : 1) * part.from[i];
  }
}

TEST(PlantedBug, HostMemoryInAnArrayOfAStruct) {
  const std::vector<float> in = numbers(kThreads);
  const DeviceArray<float> device_in(in);
  const auto run = [&](const float* last) {
    return is_found(
        [&](float* out) {
          PartsArgs args;
          std::memset(&args, 0, sizeof(args));
          const auto address = reinterpret_cast<uintptr_t>(in.data());
          for (size_t at = 0; at < sizeof(args); at += sizeof(address))
            std::memcpy(reinterpret_cast<char*>(&args) + at, &address, sizeof(address));
          args.twice = false;
          args.part[0] = {.from = device_in.data(), .first = 0, .count = 40};
          args.part[1] = {.from = device_in.data() + 40, .first = 40, .count = 40};
          args.part[2] = {.from = last, .first = 80, .count = kThreads - 80};
          args.low = static_cast<unsigned>(address);
          args.high = static_cast<unsigned>(address >> 32);
          args.out = out;
          return launch(gathered, 1, kThreads, 0, nullptr, args);
        },
        in);
  };
  EXPECT_TRUE(run(in.data() + 80));
  EXPECT_FALSE(run(device_in.data() + 80));
}

#if defined(__SANITIZE_ADDRESS__)  // with it, alignment is checked
__global__ void doubled_by_vectors(const float* in, float* out) {
  const float4 quad = reinterpret_cast<const float4*>(in)[threadIdx.x];
  reinterpret_cast<float4*>(out)[threadIdx.x] =
      make_float4(2 * quad.x, 2 * quad.y, 2 * quad.z, 2 * quad.w);
}

TEST(PlantedBugDeathTest, MisalignedVector) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::vector<float> in = numbers(kThreads + 4);
  const auto run = [&](int skipped) {
    std::vector<float> right(kThreads);
    for (int i = 0; i < kThreads; ++i) right[i] = 2 * in[i + skipped];
    const DeviceArray<float> device_in(in);
    return is_found(
        [&](float* out) {
          return launch(doubled_by_vectors, 1, kThreads / 4, 0, nullptr, device_in.data() + skipped,
                        out);
        },
        right);
  };
  EXPECT_DEATH(run(1), "misaligned address");
  EXPECT_FALSE(run(4));
}
#endif

// Lanes that have left bring nothing to a sum over the warp.
template <bool kBug>
__global__ void sum_of_warp(const float* in, float* out, int n) {
  const int lane = static_cast<int>(threadIdx.x);
  if (kBug && lane >= n) return;
  float sum = lane < n ? in[lane] : 0.0f;
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, apart);
  if (lane == 0) *out = sum;
}

TEST(PlantedBug, ShuffleFromALaneThatHasLeft) {
  const DeviceArray<float> device_in(std::vector<float>(32, 0.5f));
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, 32, 0, nullptr, device_in.data(), out, 20); },
        {10.0f});
  };
  EXPECT_TRUE(run(sum_of_warp<true>));
  EXPECT_FALSE(run(sum_of_warp<false>));
}

// Within a warp too, memory needs a barrier.
template <bool kBug>
__global__ void rotated_in_warp(const float* in, float* out) {
  GPU_SHARED(float, tile, 32);
  tile[threadIdx.x] = in[threadIdx.x];
  if (!kBug) __syncwarp();
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 32];
}

TEST(PlantedBug, MissingSyncwarp) {
  const std::vector<float> in = numbers(32);
  std::vector<float> right(in.begin() + 1, in.end());
  right.push_back(in[0]);
  const DeviceArray<float> device_in(in);
  const auto run = [&](auto kernel) {
    return is_found(
        [&](float* out) { return launch(kernel, 1, 32, 0, nullptr, device_in.data(), out); },
        right);
  };
  EXPECT_TRUE(run(rotated_in_warp<true>));
  EXPECT_FALSE(run(rotated_in_warp<false>));
}

// A graph keeps the addresses that it was captured with.
template <bool kBug>
cudaError_t replayed_after_free() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const DeviceArray<float> in(numbers(kThreads));
  auto out = std::make_unique<DeviceArray<float>>(kThreads);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(launch(scaled, 1, kThreads, 0, stream, ScaleArgs{in.data(), out->data(), kThreads}),
            cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  if (kBug) out.reset();
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  const cudaError_t outcome = cudaStreamSynchronize(stream);
  reset_faults();
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  return outcome;
}

TEST(PlantedBug, GraphOverFreedMemory) {
  EXPECT_EQ(replayed_after_free<true>(), cudaErrorIllegalAddress);
  EXPECT_EQ(replayed_after_free<false>(), cudaSuccess);
}

}  // namespace
