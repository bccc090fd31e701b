// The test of the test, host side: what goes wrong between streams, and between the host and a
// stream. Each bug must show in a few rounds of drawn delays, and nothing in the corrected twin.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/runtime/control.h"

namespace brigade::cuda_emulation {
namespace {

constexpr int kRounds = 12;
constexpr size_t kCount = 256;

class PlantedStreamBug : public testing::Test {
 protected:
  void SetUp() override {
    set_stream_delay(3000, 1);
    ASSERT_EQ(cudaStreamCreateWithFlags(&first_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), cudaSuccess);
    void* memory = nullptr;
    ASSERT_EQ(cudaHostAlloc(&memory, 2 * kCount * sizeof(int), cudaHostAllocDefault), cudaSuccess);
    to_device_ = static_cast<int*>(memory);
    from_device_ = to_device_ + kCount;
  }
  void TearDown() override {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(first_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(second_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(to_device_), cudaSuccess);
    set_stream_delay(100, 16);
  }

  // One stream writes, the other reads what was written.
  enum class Wait { kRight, kMissing, kBeforeTheRecord };
  bool wrong_with(Wait wait) {
    const DeviceArray<int> data(kCount);
    bool wrong = false;
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_EQ(cudaMemsetAsync(data.data(), round, kCount * sizeof(int), first_), cudaSuccess);
      if (wait == Wait::kBeforeTheRecord) {  // of an earlier round's point, or of none
        EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
      }
      EXPECT_EQ(cudaEventRecord(event_, first_), cudaSuccess);
      if (wait == Wait::kRight) {
        EXPECT_EQ(cudaStreamWaitEvent(second_, event_, 0), cudaSuccess);
      }
      EXPECT_EQ(cudaMemcpyAsync(from_device_, data.data(), kCount * sizeof(int),
                                cudaMemcpyDeviceToHost, second_),
                cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
      wrong = wrong || from_device_[kCount - 1] != round * 0x01010101;
      EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    }
    return wrong;
  }

  bool wrong_when_read_early(bool bug) {
    const DeviceArray<int> data(kCount);
    bool wrong = false;
    for (int round = 0; round < kRounds; ++round) {
      EXPECT_EQ(cudaMemsetAsync(data.data(), round, kCount * sizeof(int), first_), cudaSuccess);
      EXPECT_EQ(cudaMemcpyAsync(from_device_, data.data(), kCount * sizeof(int),
                                cudaMemcpyDeviceToHost, first_),
                cudaSuccess);
      if (!bug) {
        EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
      }
      wrong = wrong || from_device_[0] != round * 0x01010101;
      EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
    }
    return wrong;
  }

  bool wrong_when_reused_early(bool bug) {
    const DeviceArray<int> data(kCount);
    bool wrong = false;
    for (int round = 0; round < kRounds; ++round) {
      std::memset(to_device_, round, kCount * sizeof(int));
      EXPECT_EQ(cudaMemcpyAsync(data.data(), to_device_, kCount * sizeof(int),
                                cudaMemcpyHostToDevice, first_),
                cudaSuccess);
      if (!bug) {
        EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
      }
      std::memset(to_device_, 0x55, kCount * sizeof(int));
      EXPECT_EQ(cudaMemcpyAsync(from_device_, data.data(), kCount * sizeof(int),
                                cudaMemcpyDeviceToHost, first_),
                cudaSuccess);
      EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
      wrong = wrong || from_device_[kCount - 1] != round * 0x01010101;
    }
    return wrong;
  }

  cudaStream_t first_ = nullptr, second_ = nullptr;
  cudaEvent_t event_ = nullptr;
  int *to_device_ = nullptr, *from_device_ = nullptr;
};

TEST_F(PlantedStreamBug, MissingEventWait) {
  EXPECT_TRUE(wrong_with(Wait::kMissing));
  EXPECT_FALSE(wrong_with(Wait::kRight));
}

// What is waited for is the point that was recorded last when the call was made.
TEST_F(PlantedStreamBug, EventWaitBeforeItsRecord) {
  EXPECT_TRUE(wrong_with(Wait::kBeforeTheRecord));
}

TEST_F(PlantedStreamBug, HostFunctionCallsTheRuntime) {
  cudaError_t outcome = cudaSuccess;
  EXPECT_EQ(cudaLaunchHostFunc(
                first_,
                [](void* out) {
                  void* memory = nullptr;
                  *static_cast<cudaError_t*>(out) = cudaMalloc(&memory, 8);
                },
                &outcome),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(first_), cudaSuccess);
  EXPECT_EQ(outcome, cudaErrorNotPermitted);
}

TEST_F(PlantedStreamBug, ResultReadTooEarly) {
  EXPECT_TRUE(wrong_when_read_early(true));
  EXPECT_FALSE(wrong_when_read_early(false));
}

TEST_F(PlantedStreamBug, SourceReusedTooEarly) {
  EXPECT_TRUE(wrong_when_reused_early(true));
  EXPECT_FALSE(wrong_when_reused_early(false));
}

TEST(PlantedStreamBugDeathTest, HostTouchesDeviceMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto touch = [](size_t index) {
    const DeviceArray<int> data(100);
    EXPECT_EQ(cudaMemset(data.data(), 0, 400), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const volatile int* at = data.data() + index;
    std::exit(*at == 0 ? 0 : 1);
  };
  EXPECT_DEATH(touch(3), "host code accesses .* byte 12 of a device allocation of 400 bytes");
}

// Bits that must not depend on the batch do not come from a library that promises nothing of the
// kind.
TEST(PlantedLibraryBug, LibraryProductWhereARowsBitsMustNotDependOnTheBatch) {
  constexpr int kIn = 512, kOut = 8, kTokens = 5;
  std::vector<float> x(kIn * kTokens), w(kIn * kOut);
  for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  for (size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<float>(3 * i));
  const DeviceArray<float> dx(x), dw(w), dy(kOut * kTokens);
  cublasHandle_t handle = nullptr;
  ASSERT_EQ(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
  const auto first_row = [&](int tokens) {
    const float one = 1, zero = 0;
    EXPECT_EQ(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, kOut, tokens, kIn, &one, dw.data(),
                           CUDA_R_32F, kIn, dx.data(), CUDA_R_32F, kIn, &zero, dy.data(),
                           CUDA_R_32F, kOut, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
    const std::vector<float> out = dy.read();
    return std::vector<float>(out.begin(), out.begin() + kOut);
  };
  EXPECT_NE(first_row(1), first_row(kTokens));
  EXPECT_EQ(first_row(kTokens), first_row(kTokens));
  EXPECT_EQ(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
}  // namespace brigade::cuda_emulation
