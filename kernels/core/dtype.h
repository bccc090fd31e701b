// Element types of tensors and weights. Pure data; usable on any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace brigade::kernels {

enum class DType : uint8_t { kF32, kF16, kBF16, kI32 };

constexpr size_t dtype_bytes(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 4;
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kI32: return "i32";
  }
  return "?";
}

}  // namespace brigade::kernels
