// bf16 and f16 as bits, one value at a time, rounding to nearest even: for loaders, tests and plain
// code. The kernels convert whole vectors to the same bits. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <cstring>

namespace brigade::kernels {

inline float f32_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline uint32_t bits_of_f32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float bf16_to_f32(uint16_t bits) { return f32_of_bits(uint32_t{bits} << 16); }

// NaN stays NaN (quiet, sign and upper payload kept).
inline uint16_t f32_to_bf16(float value) {
  const uint32_t bits = bits_of_f32(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float f16_to_f32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
    return f32_of_bits(bits_of_f32(magnitude) | sign);
  }
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000u : 0u;
    return f32_of_bits(sign | 0x7F800000u | (mantissa << 13) | quiet);
  }
  return f32_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Overflow becomes infinity, as the hardware instruction does.
inline uint16_t f32_to_f16(float value) {
  const uint32_t bits = bits_of_f32(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) {
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  }
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves round(value * 2^24) in the low bits
    const float shifted = f32_of_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of_f32(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

}  // namespace brigade::kernels
