// Device functions that CUDA's headers do not give to a host compiler. What IEEE 754 fixes (the _rn
// functions, sqrt, fma, bit casts) has a device's bits; approximations (__expf, rsqrtf, ...) are
// the host library's and differ from a device in the last places. Compile with -ffp-contract=off.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "tests/cuda_emulation/shim/device_thread.h"

inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline float __frsqrt_rn(float a) {
  return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a)));
}
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }

inline int __float2int_rn(float a) { return static_cast<int>(__builtin_nearbyintf(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline int __float2int_rd(float a) { return static_cast<int>(__builtin_floorf(a)); }
inline unsigned __float2uint_rn(float a) { return static_cast<unsigned>(__builtin_nearbyintf(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline int __double2int_rn(double a) { return static_cast<int>(__builtin_nearbyint(a)); }

inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }

inline int __popc(unsigned a) { return std::popcount(a); }
inline int __popcll(unsigned long long a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return std::countl_zero(static_cast<unsigned long long>(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline unsigned __brev(unsigned a) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (a >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(
      ((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}

inline float rsqrtf(float a) { return 1.0f / __builtin_sqrtf(a); }
inline double rsqrt(double a) { return 1.0 / __builtin_sqrt(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
// glibc declares some of these names itself.
namespace brigade::cuda_emulation {
inline float fast_exp(float a) { return __builtin_expf(a); }
inline float fast_log(float a) { return __builtin_logf(a); }
inline float fast_log2(float a) { return __builtin_log2f(a); }
inline float fast_pow(float a, float b) { return __builtin_powf(a, b); }
inline float fast_sin(float a) { return __builtin_sinf(a); }
inline float fast_cos(float a) { return __builtin_cosf(a); }
}  // namespace brigade::cuda_emulation
#define __expf(a) ::brigade::cuda_emulation::fast_exp(a)
#define __logf(a) ::brigade::cuda_emulation::fast_log(a)
#define __log2f(a) ::brigade::cuda_emulation::fast_log2(a)
#define __powf(a, b) ::brigade::cuda_emulation::fast_pow(a, b)
#define __sinf(a) ::brigade::cuda_emulation::fast_sin(a)
#define __cosf(a) ::brigade::cuda_emulation::fast_cos(a)

// min and max of two numbers, in the common type as in device code.
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> min(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
requires(std::is_arithmetic_v<A>&& std::is_arithmetic_v<B>) constexpr std::common_type_t<A, B> max(
    A a, B b) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(static_cast<T>(a), static_cast<T>(b));
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

// Cached and streaming loads and stores are plain ones.
#define BRIGADE_PLAIN_LOAD(name) \
  template <typename T>          \
  T name(const T* address) {     \
    return *address;             \
  }
BRIGADE_PLAIN_LOAD(__ldg)
BRIGADE_PLAIN_LOAD(__ldcs)
BRIGADE_PLAIN_LOAD(__ldcg)
BRIGADE_PLAIN_LOAD(__ldca)
BRIGADE_PLAIN_LOAD(__ldlu)
#undef BRIGADE_PLAIN_LOAD
template <typename T>
T __ldcv(const T* address) {
  return *static_cast<const volatile T*>(address);
}
#define BRIGADE_PLAIN_STORE(name)                        \
  template <typename T>                                  \
  void name(T* address, std::type_identity_t<T> value) { \
    *address = value;                                    \
  }
BRIGADE_PLAIN_STORE(__stcs)
BRIGADE_PLAIN_STORE(__stcg)
BRIGADE_PLAIN_STORE(__stwt)
#undef BRIGADE_PLAIN_STORE
