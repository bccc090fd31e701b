// The numbers behind exp_f32, shared by its scalar and vector forms. Private to kernels/.
#pragma once

#include <cstdint>
#include <limits>

namespace brigade::kernels::exp_f32_constants {

inline constexpr float kLog2E = 1.44269504088896341f;
// ln 2 in two parts; the first has few enough bits that n * kLn2High is exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits of the mantissa.
inline constexpr float kRoundMagic = 12582912.0f;
inline constexpr int32_t kOneBits = 0x3F800000;
inline constexpr float kLowest = -87.0f;
inline constexpr float kHighest = 88.0f;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Taylor coefficients 1/7! ... 1/0!, highest power first: on |r| <= 0.347 the first term left out,
// r^8 / 8!, is below 6e-9.
inline constexpr int kTerms = 8;
inline constexpr float kPolynomial[kTerms] = {
    1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};

}  // namespace brigade::kernels::exp_f32_constants
