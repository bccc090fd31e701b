// The truth for matrix products, from plain row-major weights; tests only. canonical_matmul is the
// kernels' own order of operations written with scalar std::fma: equal bits are expected.
// exact_matmul is double precision: a tolerance is expected.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace brigade::kernels::reference {

// Row-major [outputs, k] weights of f32, bf16 or f16.
struct RowMajorWeights {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t outputs = 0;
  int64_t k = 0;

  float at(int64_t output, int64_t i) const;
};

// x: [rows, k]; result: [rows, outputs].
// sum over blocks of 256 k, in order, of one FMA chain over k; the total starts from the first
// block.
std::vector<float> canonical_matmul(const float* x, int64_t rows, const RowMajorWeights& weights);

std::vector<double> exact_matmul(const float* x, int64_t rows, const RowMajorWeights& weights);

}  // namespace brigade::kernels::reference
