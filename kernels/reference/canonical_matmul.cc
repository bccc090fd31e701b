#include "kernels/reference/canonical_matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ops/bf16.h"

namespace brigade::kernels::reference {
namespace {

constexpr int64_t kBlockK = 256;

float f32_from_f16(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const float mantissa = static_cast<float>(bits & 1023);
  float value;
  if (exponent == 31) {
    value = mantissa == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, -24);
  } else {
    value = std::ldexp(1024.0f + mantissa, exponent - 25);
  }
  return bits & 0x8000 ? -value : value;
}

}  // namespace

float RowMajorWeights::at(int64_t output, int64_t i) const {
  const int64_t index = output * k + i;
  if (dtype == DType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DType::kBF16 ? f32_from_bf16(bits) : f32_from_f16(bits);
}

std::vector<float> canonical_matmul(const float* x, int64_t rows, const RowMajorWeights& weights) {
  std::vector<float> y(rows * weights.outputs);
  std::vector<float> w(weights.k);
  for (int64_t n = 0; n < weights.outputs; ++n) {
    for (int64_t k = 0; k < weights.k; ++k) w[k] = weights.at(n, k);
    for (int64_t r = 0; r < rows; ++r) {
      float total = 0;
      for (int64_t k0 = 0; k0 < weights.k; k0 += kBlockK) {
        float sum = 0;
        for (int64_t k = k0; k < std::min(weights.k, k0 + kBlockK); ++k) {
          sum = std::fma(x[r * weights.k + k], w[k], sum);
        }
        total = k0 == 0 ? sum : total + sum;
      }
      y[r * weights.outputs + n] = total;
    }
  }
  return y;
}

std::vector<double> exact_matmul(const float* x, int64_t rows, const RowMajorWeights& weights) {
  std::vector<double> y(rows * weights.outputs);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < weights.outputs; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < weights.k; ++k) {
        sum += static_cast<double>(x[r * weights.k + k]) * weights.at(n, k);
      }
      y[r * weights.outputs + n] = sum;
    }
  }
  return y;
}

}  // namespace brigade::kernels::reference
