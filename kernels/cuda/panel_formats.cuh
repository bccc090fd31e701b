// How a thread reads its quarter of a panel, four of the 16 outputs, two k at a time, and widens it
// to f32. Layouts: kernels/ops/packed_matrix.h. Weights are read once: the loads ask the caches to
// keep them no longer than needed, so that rows of x stay there.
#pragma once

#include "kernels/cuda/math.cuh"
#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels::cuda {

// The weights of four outputs at one k.
struct Weights4 {
  float w[4];
};

// Of a panel of 16-bit elements: K is padded to even.
__device__ __forceinline__ int64_t padded_bytes(int k) { return int64_t{(k + 1) / 2} * 64; }

struct F32Panels {
  static constexpr int kBytesPerK = 64;
  static constexpr int kQuarterBytes = 16;
  static constexpr int kPairsPerStep = 2;  // 64 bytes a thread
  struct Pair {
    float4 even, odd;
  };
  static __device__ __forceinline__ int64_t panel_bytes(int k) { return int64_t{k} * kBytesPerK; }
  static __device__ __forceinline__ Pair load(const uint8_t* at) {
    return {__ldcs(reinterpret_cast<const float4*>(at)),
            __ldcs(reinterpret_cast<const float4*>(at + kBytesPerK))};
  }
  // The last k of an odd K: what follows belongs to the next panel.
  static __device__ __forceinline__ Pair load_last(const uint8_t* at) {
    return {__ldcs(reinterpret_cast<const float4*>(at)), float4{0, 0, 0, 0}};
  }
  static __device__ __forceinline__ Weights4 even(const Pair& p) {
    return {{p.even.x, p.even.y, p.even.z, p.even.w}};
  }
  static __device__ __forceinline__ Weights4 odd(const Pair& p) {
    return {{p.odd.x, p.odd.y, p.odd.z, p.odd.w}};
  }
};

// A word holds k and k + 1 of one output.
struct BF16Panels {
  static constexpr int kBytesPerK = 32;
  static constexpr int kQuarterBytes = 16;
  static constexpr int kPairsPerStep = 4;
  struct Pair {
    uint4 words;
  };
  static __device__ __forceinline__ int64_t panel_bytes(int k) { return padded_bytes(k); }
  static __device__ __forceinline__ Pair load(const uint8_t* at) {
    return {__ldcs(reinterpret_cast<const uint4*>(at))};
  }
  static __device__ __forceinline__ Pair load_last(const uint8_t* at) { return load(at); }
  static __device__ __forceinline__ Weights4 even(const Pair& p) {
    return {{__uint_as_float(p.words.x << 16), __uint_as_float(p.words.y << 16),
             __uint_as_float(p.words.z << 16), __uint_as_float(p.words.w << 16)}};
  }
  static __device__ __forceinline__ Weights4 odd(const Pair& p) {
    constexpr unsigned kHigh = 0xFFFF0000u;
    return {{__uint_as_float(p.words.x & kHigh), __uint_as_float(p.words.y & kHigh),
             __uint_as_float(p.words.z & kHigh), __uint_as_float(p.words.w & kHigh)}};
  }
};

// Sixteen f16 a k, padded to an even K.
struct F16Panels {
  static constexpr int kBytesPerK = 32;
  static constexpr int kQuarterBytes = 8;
  static constexpr int kPairsPerStep = 4;
  struct Pair {
    uint2 even, odd;
  };
  static __device__ __forceinline__ int64_t panel_bytes(int k) { return padded_bytes(k); }
  static __device__ __forceinline__ Pair load(const uint8_t* at) {
    return {__ldcs(reinterpret_cast<const uint2*>(at)),
            __ldcs(reinterpret_cast<const uint2*>(at + kBytesPerK))};
  }
  static __device__ __forceinline__ Pair load_last(const uint8_t* at) { return load(at); }
  static __device__ __forceinline__ float half(unsigned word, int shift) {
    return widen(F16{static_cast<uint16_t>(word >> shift)});
  }
  static __device__ __forceinline__ Weights4 four(const uint2& p) {
    return {{half(p.x, 0), half(p.x, 16), half(p.y, 0), half(p.y, 16)}};
  }
  static __device__ __forceinline__ Weights4 even(const Pair& p) { return four(p.even); }
  static __device__ __forceinline__ Weights4 odd(const Pair& p) { return four(p.odd); }
};

// On the host: call(Format()) with the reader of `format`.
template <typename Call>
cudaError_t with_panels(WeightFormat format, const Call& call) {
  switch (format) {
    case WeightFormat::kF32Panels16:
      return call(F32Panels{});
    case WeightFormat::kBF16PairPanels16:
      return call(BF16Panels{});
    case WeightFormat::kF16Panels16:
      return call(F16Panels{});
    default:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace brigade::kernels::cuda
