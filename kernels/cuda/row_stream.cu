// Few rows against row-major weights, for mode fast: each weight is read once for up to 8 rows. A
// warp owns four outputs, its lanes divide K and add their sums at the end, so a row's bits are not
// the CPU's; they do not depend on the other rows.
#include <algorithm>

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/panel_output.cuh"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kWarpOutputs = 4;

// What a lane reads of one row of weights at a time: 16 bytes, widened.
template <typename T>
struct RowVector {
  static constexpr int kElements = 16 / sizeof(T);
  float v[kElements];
};

__device__ __forceinline__ RowVector<float> load_row(const float* at) {
  const float4 f = __ldcs(reinterpret_cast<const float4*>(at));
  return {{f.x, f.y, f.z, f.w}};
}
// Two elements of 16 bits.
template <typename T>
__device__ __forceinline__ void widen_two(unsigned word, float* to) {
  to[0] = widen(T{static_cast<uint16_t>(word)});
  to[1] = widen(T{static_cast<uint16_t>(word >> 16)});
}
template <typename T>
__device__ __forceinline__ RowVector<T> load_row(const T* at) {
  const uint4 words = __ldcs(reinterpret_cast<const uint4*>(at));
  RowVector<T> row;
  widen_two<T>(words.x, row.v);
  widen_two<T>(words.y, row.v + 2);
  widen_two<T>(words.z, row.v + 4);
  widen_two<T>(words.w, row.v + 6);
  return row;
}

// Elements of a row of x from k on, zero past K: the weights' padding is there, x's is not.
template <int kElements>
__device__ __forceinline__ void load_x(const float* x, int k, int k_end, bool vectors, float* to) {
  if (vectors && k + kElements <= k_end) {
#pragma unroll
    for (int i = 0; i < kElements; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(x + k + i);
      to[i] = f.x;
      to[i + 1] = f.y;
      to[i + 2] = f.z;
      to[i + 3] = f.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) to[i] = k + i < k_end ? x[k + i] : 0.0f;
  }
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int lane = kWarp / 2; lane > 0; lane /= 2) {
    value = __fadd_rn(value, __shfl_xor_sync(0xFFFFFFFFu, value, lane));
  }
  return value;
}

// Grid: x = warps' outputs times chunks of kRows rows, chunks fastest, so that those who read the
// same weights run together; y = groups. With swiglu a warp owns two gates and their two ups.
template <typename T, int kRows>
__global__ void __launch_bounds__(kWarps* kWarp)
    row_kernel(const __grid_constant__ PanelGroups groups,
               const __grid_constant__ PanelProduct product, int row_chunks) {
  static_assert(kRows * kWarpOutputs <= kWarp, "a lane keeps one sum");
  constexpr int kElements = RowVector<T>::kElements;
  const PanelGroup& group = groups.group[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int units_of_warp = product.swiglu ? kWarpOutputs / 2 : kWarpOutputs;
  const int first_unit =
      (static_cast<int>(blockIdx.x / row_chunks) * kWarps + static_cast<int>(threadIdx.x) / kWarp) *
      units_of_warp;
  const int first_row = static_cast<int>(blockIdx.x % row_chunks) * kRows;
  if (first_unit >= group.units || first_row >= group.count) return;
  const int rows = min(kRows, group.count - first_row);

  constexpr int kStep = 16 / sizeof(T);
  const int64_t stride = (int64_t{group.k} + kStep - 1) / kStep * kStep;
  const T* weights[kWarpOutputs];
#pragma unroll
  for (int o = 0; o < kWarpOutputs; ++o) {
    // Units past the last repeat it; nobody stores them. All ups follow all gates.
    const int unit = min(first_unit + o % units_of_warp, group.units - 1);
    const int row = unit + o / units_of_warp * group.units;
    weights[o] = static_cast<const T*>(group.weights) + row * stride;
  }
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] = source_row(product, group.first + first_row + min(r, rows - 1));
  }

  float sums[kRows][kWarpOutputs] = {};
#pragma unroll 2
  for (int k = lane * kElements; k < group.k; k += kWarp * kElements) {
    RowVector<T> w[kWarpOutputs];
#pragma unroll
    for (int o = 0; o < kWarpOutputs; ++o) w[o] = load_row(weights[o] + k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r >= rows) break;
      float a[kElements];
      load_x<kElements>(x[r], k, group.k, product.x_vectors, a);
#pragma unroll
      for (int o = 0; o < kWarpOutputs; ++o) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          sums[r][o] = __fmaf_rn(a[i], w[o].v[i], sums[r][o]);
        }
      }
    }
  }

  // Lane r * 4 + o keeps output o of row r.
  float mine = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int o = 0; o < kWarpOutputs; ++o) {
      const float sum = sum_of_warp(sums[r][o]);
      if (lane == r * kWarpOutputs + o) mine = sum;
    }
  }
  const float up = __shfl_down_sync(0xFFFFFFFFu, mine, kWarpOutputs / 2);
  const int row = lane / kWarpOutputs;
  const int o = lane % kWarpOutputs;
  if (row >= rows || o >= units_of_warp || first_unit + o >= group.units) return;
  const int64_t to = target_row(product, group.first + first_row + row);
  if (product.swiglu) {
    store_hidden(product, to, first_unit + o, mine, up);
  } else {
    store_sum(product, to, first_unit + o, mine);
  }
}

template <typename T>
cudaError_t launch_rows(cudaStream_t stream, const PanelGroups& groups, int num_groups,
                        const PanelProduct& product) {
  int units = 0, count = 0;
  for (int g = 0; g < num_groups; ++g) {
    units = std::max(units, groups.group[g].units);
    count = std::max(count, groups.group[g].count);
  }
  const int rows = count == 1 ? 1 : 8;
  const int units_of_block = kWarps * (product.swiglu ? kWarpOutputs / 2 : kWarpOutputs);
  const int row_chunks = static_cast<int>(ceil_div(count, rows));
  const dim3 grid(static_cast<unsigned>(ceil_div(units, units_of_block) * row_chunks),
                  static_cast<unsigned>(num_groups));
  return launch(rows == 1 ? row_kernel<T, 1> : row_kernel<T, 8>, grid, dim3(kWarps * kWarp), 0,
                stream, groups, product, row_chunks);
}

}  // namespace

cudaError_t stream_rows(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                        int num_groups, const PanelProduct& product) {
  if (weight_layout(format) != WeightLayout::kRows) return cudaErrorInvalidValue;
  return with_element(weight_dtype(format), [&](auto element) {
    return launch_rows<decltype(element)>(stream, groups, num_groups, product);
  });
}

}  // namespace brigade::kernels::cuda
