// The cuBLAS stand-in: column-major with leading dimensions, every type it takes, groups; and what
// the library refuses.
#include <cublas_v2.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/core/half.h"
#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/runtime/control.h"

namespace brigade::cuda_emulation {
namespace {

class Cublas : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cublasSetStream(handle_, stream_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    EXPECT_EQ(cublasDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasDestroy(handle_), CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    reset_faults();
  }
  cudaError_t synchronize() { return cudaStreamSynchronize(stream_); }

  cublasHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  const float one_ = 1.0f, zero_ = 0.0f;
};

float value_at(int i) { return static_cast<float>(i * 7 % 11 - 5) / 4; }

// y[token, out] = sum over in of x[token, in] * w[out, in], all row-major: as a column-major
// product the weights come transposed and first.
TEST_F(Cublas, RowMajorLinearLayerInEveryType) {
  constexpr int kTokens = 5, kIn = 24, kOut = 16, kPitch = 40;  // x has wider rows
  std::vector<float> x(kTokens * kPitch, NAN), w(kOut * kIn);
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < kIn; ++i) x[t * kPitch + i] = value_at(t * kIn + i);
  }
  for (size_t i = 0; i < w.size(); ++i) w[i] = value_at(static_cast<int>(3 * i));
  const auto to16 = [](const std::vector<float>& from, bool bf16) {
    std::vector<uint16_t> to;
    for (const float v : from)
      to.push_back(bf16 ? kernels::f32_to_bf16(v) : kernels::f32_to_f16(v));
    return to;
  };
  const DeviceArray<float> x32(x), w32(w), y(kTokens * kOut);
  const DeviceArray<uint16_t> xb(to16(x, true)), wb(to16(w, true)), xh(to16(x, false)),
      wh(to16(w, false));
  struct Case {
    cudaDataType_t type;
    const void *x, *w;
  };
  for (const Case& c :
       {Case{CUDA_R_32F, x32.data(), w32.data()}, Case{CUDA_R_16BF, xb.data(), wb.data()},
        Case{CUDA_R_16F, xh.data(), wh.data()}}) {
    ASSERT_EQ(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, kOut, kTokens, kIn, &one_, c.w,
                           c.type, kIn, c.x, c.type, kPitch, &zero_, y.data(), CUDA_R_32F, kOut,
                           CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(synchronize(), cudaSuccess);
    const std::vector<float> out = y.read();
    for (int t = 0; t < kTokens; ++t) {
      for (int o = 0; o < kOut; ++o) {
        float expected = 0;  // exact: small multiples of 1/16
        for (int i = 0; i < kIn; ++i) expected += x[t * kPitch + i] * w[o * kIn + i];
        EXPECT_EQ(out[t * kOut + o], expected) << c.type << " " << t << " " << o;
      }
    }
  }
}

TEST_F(Cublas, GroupsOfUnequalSize) {
  constexpr int kK = 8, kM = 3;
  const int rows[] = {1, 0, 4};  // of three experts; all in one array, one below the other
  std::vector<float> x(5 * kK), w(3 * kM * kK);
  for (size_t i = 0; i < x.size(); ++i) x[i] = value_at(static_cast<int>(i));
  for (size_t i = 0; i < w.size(); ++i) w[i] = value_at(static_cast<int>(5 * i + 1));
  // 16-byte aligned outputs, as the grouped call wants them.
  const DeviceArray<float> dx(x), dw(w), dy(3 * 16);
  std::vector<const void*> a, b;
  std::vector<void*> c;
  int first = 0;
  for (int e = 0; e < 3; ++e) {
    a.push_back(dw.data() + e * kM * kK);
    b.push_back(dx.data() + first * kK);
    c.push_back(dy.data() + e * 16);
    first += rows[e];
  }
  const DeviceArray<const void*> da(a), db(b);
  const DeviceArray<void*> dc(c);
  const cublasOperation_t op_a[] = {CUBLAS_OP_T, CUBLAS_OP_T, CUBLAS_OP_T};
  const cublasOperation_t op_b[] = {CUBLAS_OP_N, CUBLAS_OP_N, CUBLAS_OP_N};
  const int m[] = {kM, kM, kM}, k[] = {kK, kK, kK}, ldc[] = {4, 4, 4}, sizes[] = {1, 1, 1};
  const float ones[] = {1, 1, 1}, zeros[] = {0, 0, 0};
  const auto call = [&](cudaDataType_t c_type, const void* const* addresses) {
    return cublasGemmGroupedBatchedEx(handle_, op_a, op_b, m, rows, k, ones, addresses, CUDA_R_32F,
                                      k, db.data(), CUDA_R_32F, k, zeros, dc.data(), c_type, ldc, 3,
                                      sizes, CUBLAS_COMPUTE_32F);
  };
  ASSERT_EQ(call(CUDA_R_32F, da.data()), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(synchronize(), cudaSuccess);
  const std::vector<float> out = dy.read();
  first = 0;
  for (int e = 0; e < 3; ++e) {
    for (int row = 0; row < rows[e]; ++row) {
      for (int o = 0; o < kM; ++o) {
        float expected = 0;
        for (int i = 0; i < kK; ++i)
          expected += x[(first + row) * kK + i] * w[(e * kM + o) * kK + i];
        EXPECT_EQ(out[e * 16 + row * 4 + o], expected);
      }
      EXPECT_TRUE(std::isnan(out[e * 16 + row * 4 + 3]));  // between rows nothing is written
    }
    first += rows[e];
  }
  EXPECT_EQ(call(CUDA_R_16BF, da.data()), CUBLAS_STATUS_NOT_SUPPORTED);
  ASSERT_EQ(call(CUDA_R_32F, a.data()),
            CUBLAS_STATUS_SUCCESS);  // addresses on the host: seen by the device
  EXPECT_EQ(synchronize(), cudaErrorIllegalAddress);
  reset_faults();
}

TEST_F(Cublas, RefusesWhatTheLibraryRefuses) {
  const DeviceArray<float> a(64), b(64), c(64);
  const auto call = [&](int m, int n, int k, int lda, int ldb, int ldc, cudaDataType_t b_type,
                        cublasComputeType_t compute, const float* alpha) {
    return cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, alpha, a.data(), CUDA_R_32F,
                        lda, b.data(), b_type, ldb, &zero_, c.data(), CUDA_R_32F, ldc, compute,
                        CUBLAS_GEMM_DEFAULT);
  };
  const auto shape = [&](int m, int n, int k, int lda, int ldb, int ldc) {
    return call(m, n, k, lda, ldb, ldc, CUDA_R_32F, CUBLAS_COMPUTE_32F, &one_);
  };
  EXPECT_EQ(shape(8, 8, 8, 8, 8, 8), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(shape(0, 8, 8, 8, 8, 8), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(shape(-1, 8, 8, 8, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(shape(8, 8, 8, 7, 8, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(shape(8, 8, 8, 8, 7, 8), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(shape(8, 8, 8, 8, 8, 7), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(call(8, 8, 8, 8, 8, 8, CUDA_R_16BF, CUBLAS_COMPUTE_32F, &one_),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call(8, 8, 8, 8, 8, 8, CUDA_R_32F, CUBLAS_COMPUTE_16F, &one_),
            CUBLAS_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(call(8, 8, 8, 8, 8, 8, CUDA_R_32F, CUBLAS_COMPUTE_32F, nullptr),
            CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(synchronize(), cudaSuccess);
  ASSERT_EQ(shape(8, 9, 8, 8, 8, 8), CUBLAS_STATUS_SUCCESS);  // B and C have 8 columns
  EXPECT_EQ(synchronize(), cudaErrorIllegalAddress);
  reset_faults();
  EXPECT_EQ(cublasSetWorkspace(handle_, a.data(), 65 * sizeof(float)), CUBLAS_STATUS_INVALID_VALUE);
  cudaStream_t gone = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(gone), cudaSuccess);
  EXPECT_EQ(cublasSetStream(handle_, gone), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace brigade::cuda_emulation
