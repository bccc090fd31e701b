// The CPU kernels' arithmetic for device code: exp in f32 and f64 with the same polynomial and
// order, widening and narrowing of bf16 and f16. Every rounding is an intrinsic, so no compiler
// flag changes a bit. A NaN is a NaN here as there, but its payload may differ.
#pragma once

#include <cuda_fp16.h>

#include "kernels/core/dtype.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/ops/math_constants.h"

namespace brigade::kernels::cuda {

// a * b + c, rounded once; a * b - c, rounded once.
__device__ __forceinline__ float mul_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ float mul_sub(float a, float b, float c) { return __fmaf_rn(a, b, -c); }

// exp_f32 of kernels/ops/math.h.
__device__ __forceinline__ float exp_f32(float x) {
  namespace c = exp_f32_constants;
  constexpr float kTerms[c::kTerms] = {c::kPolynomial[0], c::kPolynomial[1], c::kPolynomial[2],
                                       c::kPolynomial[3], c::kPolynomial[4], c::kPolynomial[5],
                                       c::kPolynomial[6], c::kPolynomial[7]};
  const float shifted = __fmaf_rn(x, c::kLog2E, c::kRoundMagic);
  const float n = __fsub_rn(shifted, c::kRoundMagic);
  float r = __fmaf_rn(n, -c::kLn2High, x);
  r = __fmaf_rn(n, -c::kLn2Low, r);
  float p = kTerms[0];
#pragma unroll
  for (int i = 1; i < c::kTerms; ++i) p = __fmaf_rn(p, r, kTerms[i]);
  const unsigned power = (__float_as_uint(shifted) << 23) + unsigned{c::kOneBits};
  float y = __fmul_rn(p, __uint_as_float(power));
  y = x < c::kLowest ? 0.0f : y;
  y = x > c::kHighest ? c::kInfinity : y;
  return x == x ? y : x;
}

// exp_f64 of kernels/ops/math.h.
__device__ __forceinline__ double exp_f64(double x) {
  namespace c = exp_f64_constants;
  if (!(x == x)) return x;
  if (x > c::kHighest) return c::kInfinity;
  if (x < c::kLowest) return 0;
  constexpr double kTerms[c::kTerms] = {c::kPolynomial[0], c::kPolynomial[1],  c::kPolynomial[2],
                                        c::kPolynomial[3], c::kPolynomial[4],  c::kPolynomial[5],
                                        c::kPolynomial[6], c::kPolynomial[7],  c::kPolynomial[8],
                                        c::kPolynomial[9], c::kPolynomial[10], c::kPolynomial[11]};
  const double n = __dsub_rn(__fma_rn(x, c::kLog2E, c::kRoundMagic), c::kRoundMagic);
  const double high = __fma_rn(n, -c::kLn2High, x);
  const double r = __fma_rn(n, -c::kLn2Low, high);
  double p = kTerms[0];
#pragma unroll
  for (int i = 1; i < c::kTerms; ++i) p = __fma_rn(p, r, kTerms[i]);
  const double value = __dadd_rn(1.0, __fma_rn(__dmul_rn(r, r), p, r));
  const int64_t whole = static_cast<int64_t>(n);
  const int64_t half = whole / 2;
  const double first = __longlong_as_double((half + 1023) << 52);
  const double second = __longlong_as_double((whole - half + 1023) << 52);
  return __dmul_rn(__dmul_rn(value, first), second);
}

// Elements of 16 bits as their bits: bf16 or f16, told apart by type.
struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

// On the host: call(T()) with the type of elements of `dtype`.
template <typename Call>
cudaError_t with_element(DType dtype, const Call& call) {
  switch (dtype) {
    case DType::kF32:
      return call(float{});
    case DType::kBF16:
      return call(Bf16{});
    case DType::kF16:
      return call(F16{});
    case DType::kI32:
      break;
  }
  return cudaErrorInvalidValue;
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(Bf16 value) {
  return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}
__device__ __forceinline__ float widen(F16 value) {
  return __half2float(__ushort_as_half(value.bits));
}

// Rounds to nearest even; f16 overflows to infinity; NaN stays NaN.
template <typename T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 narrow<Bf16>(float value) {
  const unsigned bits = __float_as_uint(value);
  const unsigned rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16)};
}
template <>
__device__ __forceinline__ F16 narrow<F16>(float value) {
  return {__half_as_ushort(__float2half_rn(value))};
}

}  // namespace brigade::kernels::cuda
