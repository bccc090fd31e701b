#include "kernels/cuda/fast_rows.h"

#include <algorithm>

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/swiglu.cuh"

namespace brigade::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Grid of the row kernels: x = rows of a range, y = ranges; a thread block has one row. -1: none.
__device__ __forceinline__ int row_of_block(const RowRanges& ranges) {
  const RowRange& range = ranges.range[blockIdx.y];
  const int row = static_cast<int>(blockIdx.x);
  return row < range.count ? range.first + row : -1;
}

__device__ __forceinline__ int64_t indexed(const int32_t* index, int i) {
  return index != nullptr ? index[i] : i;
}

template <typename T>
__global__ void round_kernel(const __grid_constant__ RowRanges ranges, const float* x,
                             int64_t x_stride, const int32_t* row_index, T* to, int64_t to_stride,
                             int width) {
  const int row = row_of_block(ranges);
  if (row < 0) return;
  const float* const from = x + indexed(row_index, row) * x_stride;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    to[row * to_stride + i] = narrow<T>(from[i]);
  }
}

template <typename T>
__global__ void swiglu_kernel(const __grid_constant__ RowRanges ranges, T* rows, int64_t stride) {
  const int row = row_of_block(ranges);
  if (row < 0) return;
  const int ffn = ranges.range[blockIdx.y].ffn;
  T* const gate = rows + row * stride;
  for (int i = threadIdx.x; i < ffn; i += kThreads) {
    gate[i] = narrow<T>(swiglu(widen(gate[i]), widen(gate[ffn + i])));
  }
}

template <typename T, typename Out>
__global__ void answer_kernel(const __grid_constant__ RowRanges ranges, const T* rows,
                              int64_t stride, const int32_t* out_index, Out* out, int hidden) {
  const int row = row_of_block(ranges);
  if (row < 0) return;
  Out* const to = out + indexed(out_index, row) * hidden;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    to[i] = narrow<Out>(widen(rows[row * stride + i]));
  }
}

__global__ void bias_kernel(float* y, int64_t y_stride, const float* bias, int64_t outputs) {
  const int64_t i = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (i >= outputs) return;
  float* const at = y + blockIdx.x * y_stride + i;
  *at = __fadd_rn(*at, bias[i]);
}

__global__ void address_kernel(const __grid_constant__ Addresses addresses, int count,
                               const void** to) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) to[i] = addresses.at[i];
}

dim3 row_grid(const RowRanges& ranges, int num_ranges) {
  int rows = 0;
  for (int r = 0; r < num_ranges; ++r) rows = std::max(rows, ranges.range[r].count);
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(num_ranges));
}

}  // namespace

cudaError_t round_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                       const float* x, int64_t x_stride, const int32_t* row_index, void* to,
                       int64_t to_stride, int width) {
  return with_element(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(round_kernel<T>, row_grid(ranges, num_ranges), dim3(kThreads), 0, stream, ranges,
                  x, x_stride, row_index, static_cast<T*>(to), to_stride, width);
  });
}

cudaError_t swiglu_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                        void* rows, int64_t stride) {
  return with_element(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(swiglu_kernel<T>, row_grid(ranges, num_ranges), dim3(kThreads), 0, stream, ranges,
                  static_cast<T*>(rows), stride);
  });
}

cudaError_t answer_rows(cudaStream_t stream, const RowRanges& ranges, int num_ranges, DType dtype,
                        const void* rows, int64_t stride, const int32_t* out_index, void* out,
                        DType out_dtype, int hidden) {
  return with_element(dtype, [&](auto type) {
    using T = decltype(type);
    const auto run = [&](auto out_type) {
      using Out = decltype(out_type);
      return launch(answer_kernel<T, Out>, row_grid(ranges, num_ranges), dim3(kThreads), 0, stream,
                    ranges, static_cast<const T*>(rows), stride, out_index, static_cast<Out*>(out),
                    hidden);
    };
    return out_dtype == DType::kBF16 ? run(Bf16{}) : run(float{});
  });
}

cudaError_t add_bias(cudaStream_t stream, float* y, int64_t y_stride, int rows, const float* bias,
                     int64_t outputs) {
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(outputs, kThreads)));
  return launch(bias_kernel, grid, dim3(kThreads), 0, stream, y, y_stride, bias, outputs);
}

cudaError_t write_addresses(cudaStream_t stream, const Addresses& addresses, int count,
                            const void** to) {
  return launch(address_kernel, dim3(1), dim3(kMaxBlasGroups), 0, stream, addresses, count, to);
}

}  // namespace brigade::kernels::cuda
