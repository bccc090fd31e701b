// Row work around the library's products in mode fast: rounding rows to the weights' dtype, SwiGLU,
// answers, bias. Enqueued on the stream; arguments travel in the kernels' parameters.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/cuda/blas.h"

namespace brigade::kernels::cuda {

// Rows [first, first + count) of a call's row lists.
struct RowRange {
  int first = 0;
  int count = 0;
  int ffn = 0;  // of their expert
};
struct RowRanges {
  RowRange range[kMaxBlasGroups];
};

// to[i] = x[row_index[i]] rounded to `dtype`, for i in the ranges; strides in elements.
cudaError_t round_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                       const float* x, int64_t x_stride, const int32_t* row_index, void* to,
                       int64_t to_stride, int width);
// rows[i][j] = silu(rows[i][j]) * rows[i][ffn + j], in place, for j < ffn.
cudaError_t swiglu_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                        void* rows, int64_t stride);
// out[out_index[i]] = rows[i], of `dtype`, as `out_dtype` (f32 or bf16).
cudaError_t answer_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                        const void* rows, int64_t stride, const int32_t* out_index, void* out,
                        DType out_dtype, int hidden);
// y[r] += bias.
cudaError_t add_bias(cudaStream_t stream, float* y, int64_t y_stride, int rows, const float* bias,
                     int64_t outputs);

// Device addresses of a grouped call's matrices, written to device memory by a kernel: a copy from
// host memory would need it to stay unchanged.
struct Addresses {
  const void* at[kMaxBlasGroups];
};
cudaError_t write_addresses(cudaStream_t stream, const Addresses& addresses, int count,
                            const void** to);

}  // namespace brigade::kernels::cuda
