// The numbers behind exp_f32 and exp_f64, shared by the scalar, vector and device forms. Private to
// kernels/.
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

namespace brigade::kernels::exp_f64_constants {

inline constexpr double kLog2E = 1.4426950408889634;
// ln 2: the high part has 21 trailing zero bits, so that a multiple of it below 2^21 is exact.
inline constexpr double kLn2High = 6.93147180369123816490e-01;
inline constexpr double kLn2Low = 1.90821492927058770002e-10;
inline constexpr double kRoundMagic = 6755399441055744.0;  // 1.5 * 2^52
inline constexpr double kLowest = -745.14;
inline constexpr double kHighest = 709.79;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr int kTerms = 12;  // 1/13! ... 1/2!
inline constexpr double kPolynomial[kTerms] = {
    1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
    1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
    1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};

}  // namespace brigade::kernels::exp_f64_constants
