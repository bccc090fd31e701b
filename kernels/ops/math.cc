#include "kernels/ops/math.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ops/math_constants.h"

// A fused multiply-add must be one instruction here, not a call of the C library.
#if defined(__x86_64__)
#define BRIGADE_WITH_FMA __attribute__((target("avx2,fma")))
#else
#define BRIGADE_WITH_FMA
#endif

namespace brigade::kernels {
namespace {

template <typename To, typename From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

using exp_f64_constants::kInfinity;
using exp_f64_constants::kLn2High;
using exp_f64_constants::kLn2Low;
using exp_f64_constants::kRoundMagic;

double power_of_two(int64_t n) { return bits_as<double>((n + 1023) << 52); }

// pi/2 in three doubles.
constexpr double kHalfPi1 = 1.5707963267948966;
constexpr double kHalfPi2 = 6.123233995736766e-17;
constexpr double kHalfPi3 = -1.4973849048591833e-33;

// x = quadrant * pi/2 + high + low, |high| <= pi/4.
struct Reduced {
  double high;
  double low;
  int64_t quadrant;
};

BRIGADE_WITH_FMA Reduced reduce_angle(double x) {
  const double n = std::fma(x, 0.63661977236758138, kRoundMagic) - kRoundMagic;
  // Exact for |x| <= 2^30: the difference needs no more than 53 bits.
  const double first = std::fma(-n, kHalfPi1, x);
  const double second = n * kHalfPi2;
  const double second_error = std::fma(n, kHalfPi2, -second);
  const double high = first - second;
  double low = (first - high) - second;
  low = low - second_error - n * kHalfPi3;
  return {high, low, static_cast<int64_t>(n)};
}

// sin(high + low) = sin(high) + low * cos(high), for |high| <= pi/4; Taylor to x^17.
BRIGADE_WITH_FMA double sin_core(double x, double low) {
  constexpr double kTerms[] = {
      1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
      1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  const double square = x * x;
  double p = kTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, square, kTerms[i]);
  const double tail = std::fma(p * square, x, std::fma(low * -0.5, square, low));
  return x + tail;
}

// Taylor to x^18.
BRIGADE_WITH_FMA double cos_core(double x, double low) {
  constexpr double kTerms[] = {
      -1.0 / 6402373705728000.0, 1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0,
      -1.0 / 3628800.0,          1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
  const double square = x * x;
  double p = kTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, square, kTerms[i]);
  // 1 - square / 2 with its rounding error carried on.
  const double half = 0.5 * square;
  const double top = 1.0 - half;
  const double top_error = (1.0 - top) - half;
  return top + (std::fma(p * square, square, top_error) - x * low);
}

BRIGADE_WITH_FMA double sin_of_quadrant(const Reduced& angle, int64_t quadrant) {
  const double value =
      (quadrant & 1) == 0 ? sin_core(angle.high, angle.low) : cos_core(angle.high, angle.low);
  return (quadrant & 2) == 0 ? value : -value;
}

}  // namespace

BRIGADE_WITH_FMA float exp_f32(float x) {
  namespace c = exp_f32_constants;
  if (!(x == x)) return x;
  if (x < c::kLowest) return 0.0f;
  if (x > c::kHighest) return c::kInfinity;
  const float shifted = std::fma(x, c::kLog2E, c::kRoundMagic);
  const float n = shifted - c::kRoundMagic;
  float r = std::fma(n, -c::kLn2High, x);
  r = std::fma(n, -c::kLn2Low, r);
  float p = c::kPolynomial[0];
  for (int i = 1; i < c::kTerms; ++i) p = std::fma(p, r, c::kPolynomial[i]);
  const uint32_t power = (bits_as<uint32_t>(shifted) << 23) + uint32_t{c::kOneBits};
  return p * bits_as<float>(power);
}

BRIGADE_WITH_FMA double exp_f64(double x) {
  namespace c = exp_f64_constants;
  if (!(x == x)) return x;
  if (x > c::kHighest) return kInfinity;
  if (x < c::kLowest) return 0;
  const double n = std::fma(x, c::kLog2E, kRoundMagic) - kRoundMagic;
  const double high = std::fma(n, -kLn2High, x);
  const double r = std::fma(n, -kLn2Low, high);
  double p = c::kPolynomial[0];
  for (int i = 1; i < c::kTerms; ++i) p = std::fma(p, r, c::kPolynomial[i]);
  // 1 + (r + r^2 * p): the large term last keeps the error near half a unit.
  const double value = 1.0 + std::fma(r * r, p, r);
  // In two steps, because 2^n alone may be out of range where the result is not.
  const int64_t half = static_cast<int64_t>(n) / 2;
  return value * power_of_two(half) * power_of_two(static_cast<int64_t>(n) - half);
}

BRIGADE_WITH_FMA double log_f64(double x) {
  if (!(x > 0)) return x == 0 ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
  if (x == kInfinity) return x;
  int64_t exponent = 0;
  if (x < 2.2250738585072014e-308) {
    x *= 18014398509481984.0;  // 2^54
    exponent = -54;
  }
  // x = 2^exponent * m with m in [sqrt(1/2), sqrt(2)).
  const uint64_t bits = bits_as<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  double m = bits_as<double>((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m >= 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log(m) = 2 artanh(s), s = (m - 1) / (m + 1); series in s^2.
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double square = s * s;
  double p = 1.0 / 23;
  for (int odd = 21; odd >= 3; odd -= 2) p = std::fma(p, square, 1.0 / odd);
  const double series = p * square;
  // 2s = f - s*f exactly, so the large term f carries no error of the division.
  const double log_m_tail = std::fma(2.0 * s, series, -s * f);
  const double e = static_cast<double>(exponent);
  return std::fma(e, kLn2High, f + std::fma(e, kLn2Low, log_m_tail));
}

double sin_f64(double x) {
  const Reduced angle = reduce_angle(x);
  return sin_of_quadrant(angle, angle.quadrant);
}

double cos_f64(double x) {
  const Reduced angle = reduce_angle(x);
  return sin_of_quadrant(angle, angle.quadrant + 1);
}

void fill_rope_tables(const double* inverse_frequencies, int half_dim, int max_positions,
                      double magnitude, float* cos_table, float* sin_table) {
  for (int64_t position = 0; position < max_positions; ++position) {
    for (int i = 0; i < half_dim; ++i) {
      const double angle = static_cast<double>(position) * inverse_frequencies[i];
      cos_table[position * half_dim + i] = static_cast<float>(cos_f64(angle) * magnitude);
      sin_table[position * half_dim + i] = static_cast<float>(sin_f64(angle) * magnitude);
    }
  }
}

}  // namespace brigade::kernels
