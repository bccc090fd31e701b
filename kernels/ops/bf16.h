// bf16 <-> f32 for single values. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <cstring>

namespace brigade::kernels {

inline float f32_from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Round to nearest even; a NaN stays a (quiet) NaN.
inline uint16_t bf16_from_f32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace brigade::kernels
