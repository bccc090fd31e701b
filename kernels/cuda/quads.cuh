// Rows read and written four columns at a time: 16-byte accesses (8 bytes for bf16 and f16) where a
// row's length and address allow it, single elements elsewhere. `wide` is the same for a whole
// launch: is_wide() of every pointer and stride, decided on the host.
#pragma once

#include "kernels/cuda/math.cuh"

namespace brigade::kernels::cuda {

inline constexpr int kQuad = 4;

// Rows of `stride` elements from `data` on all start where a quad may be accessed at once.
template <typename T>
bool is_wide(const T* data, int64_t stride) {
  return stride % kQuad == 0 && reinterpret_cast<uintptr_t>(data) % (kQuad * sizeof(T)) == 0;
}

__device__ __forceinline__ float4 load_quad(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}
template <typename T>
__device__ __forceinline__ float4 load_quad(const T* from) {
  const uint2 pairs = *reinterpret_cast<const uint2*>(from);
  const auto element = [](unsigned bits) { return widen(T{static_cast<uint16_t>(bits)}); };
  return make_float4(element(pairs.x), element(pairs.x >> 16), element(pairs.y),
                     element(pairs.y >> 16));
}

// row[column, column + 4), widened; zero from `width` on.
template <typename T>
__device__ __forceinline__ float4 load_quad(const T* row, int column, int width, bool wide) {
  if (wide && column + kQuad <= width) return load_quad(row + column);
  const auto element = [&](int i) { return i < width ? widen(row[i]) : 0.0f; };
  return make_float4(element(column), element(column + 1), element(column + 2),
                     element(column + 3));
}

// Writes what lies before `width`.
__device__ __forceinline__ void store_quad(float* row, int column, int width, bool wide,
                                           float4 value) {
  if (wide && column + kQuad <= width) {
    *reinterpret_cast<float4*>(row + column) = value;
    return;
  }
  if (column < width) row[column] = value.x;
  if (column + 1 < width) row[column + 1] = value.y;
  if (column + 2 < width) row[column + 2] = value.z;
  if (column + 3 < width) row[column + 3] = value.w;
}

// A grid over rows and, within a row, pieces of kQuadThreads quads: one row alone fills several
// multiprocessors, and neighbouring threads read neighbouring addresses.
inline constexpr int kQuadThreads = 128;
inline constexpr int kPieceColumns = kQuadThreads * kQuad;

inline dim3 quad_grid(int rows, int width) {
  return dim3(static_cast<unsigned>(rows * ceil_div(width, kPieceColumns)));
}

struct QuadPlace {
  int64_t row;
  int column;  // of this thread's quad; may lie past the row's end
};
__device__ __forceinline__ QuadPlace quad_place(int width) {
  const unsigned pieces = static_cast<unsigned>((width + kPieceColumns - 1) / kPieceColumns);
  const unsigned row = blockIdx.x / pieces;
  const unsigned piece = blockIdx.x - row * pieces;
  return {row, static_cast<int>(piece * kPieceColumns + threadIdx.x * kQuad)};
}

}  // namespace brigade::kernels::cuda
