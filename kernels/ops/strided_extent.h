// How far a strided matrix reaches, for argument checks. Private to kernels/ops.
#pragma once

#include <cstdint>

namespace brigade::kernels {

// Bytes from the first to behind the last element of `rows` rows of `width` elements.
constexpr int64_t strided_bytes(int64_t rows, int64_t stride, int64_t width, int64_t element_bytes) {
  return rows == 0 ? 0 : ((rows - 1) * stride + width) * element_bytes;
}

}  // namespace brigade::kernels
