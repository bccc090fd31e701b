// cuBLAS for row-major products y[rows, outputs] (+)= x[rows, k] w[outputs, k]^T, summed in f32;
// the only place that calls the library. One object a stream, used by the stream's thread. Calls
// enqueue and return; what the library refuses becomes a status with the call and its sizes.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <array>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"

namespace brigade::kernels::cuda {

// Sizes of a product; strides in elements, from row to row.
struct BlasShape {
  int rows = 0, outputs = 0, k = 0;
  int64_t x_stride = 0, weight_stride = 0, y_stride = 0;
};

// Products of one grouped call.
inline constexpr int kMaxBlasGroups = 128;

class Blas {
 public:
  // The library's own workspace is allocated here and never grows, so that calls can be captured.
  static absl::StatusOr<std::unique_ptr<Blas>> create(Device& device, cudaStream_t stream);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // x and w of `dtype`, y of `y_dtype` (f32 or `dtype`); with `accumulate` y is added to.
  absl::Status product(DType dtype, const BlasShape& shape, const void* x, const void* weights,
                       DType y_dtype, void* y, bool accumulate);
  // `count` products with x, w and y of `dtype`. The arrays of addresses are device memory and are
  // read when the stream gets there; every matrix starts 16-byte aligned. Not for a stream that
  // records a graph: what the library keeps of the sizes, which it takes from host memory, until
  // the graph runs is not documented.
  absl::Status products(DType dtype, const BlasShape* shapes, int count, const void* const* x,
                        const void* const* weights, void* const* y);

 private:
  Blas(cublasHandle_t handle, Buffer workspace);

  const cublasHandle_t handle_;
  const Buffer workspace_;
  // A grouped call's arguments on the host, read while the call is made.
  struct GroupArrays {
    std::array<cublasOperation_t, kMaxBlasGroups> transposed, plain;
    std::array<int, kMaxBlasGroups> m, n, k, lda, ldb, ldc, size;
    std::array<float, kMaxBlasGroups> alpha, beta;
  };
  const std::unique_ptr<GroupArrays> arrays_;
};

}  // namespace brigade::kernels::cuda
