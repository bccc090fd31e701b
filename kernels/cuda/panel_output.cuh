// Where finished sums of a product go; one function for both kernels, so that they cannot differ.
#pragma once

#include "kernels/cuda/panel_product.h"
#include "kernels/cuda/swiglu.cuh"

namespace brigade::kernels::cuda {

// Row i of the product's list.
__device__ __forceinline__ const float* source_row(const PanelProduct& product, int i) {
  const int64_t row = product.row_index != nullptr ? product.row_index[i] : i;
  return product.x + row * product.x_stride;
}

__device__ __forceinline__ int64_t target_row(const PanelProduct& product, int i) {
  return product.out_index != nullptr ? product.out_index[i] : i;
}

// `row`: of the target. Bias first, then the addition to what was there: one rounding each.
__device__ __forceinline__ void store_sum(const PanelProduct& product, int64_t row, int64_t output,
                                          float sum) {
  if (output >= product.outputs) return;
  const int64_t at = row * product.to_stride + output;
  if (product.dtype == DType::kBF16) {
    static_cast<Bf16*>(product.to)[at] = narrow<Bf16>(sum);
    return;
  }
  float* const to = static_cast<float*>(product.to) + at;
  if (product.bias != nullptr) sum = __fadd_rn(sum, product.bias[output]);
  *to = product.accumulate ? __fadd_rn(*to, sum) : sum;
}

__device__ __forceinline__ void store_hidden(const PanelProduct& product, int64_t row,
                                             int64_t column, float gate, float up) {
  static_cast<float*>(product.to)[row * product.to_stride + column] = swiglu(gate, up);
}

}  // namespace brigade::kernels::cuda
