// The inner loops of attention over a tile of positions in f32. Every value of a query depends on
// its own inputs in a fixed order: a score on 16 lanes over head_dim and the fixed tree, an output on
// one chain over rising positions, a softmax sum on 16 lanes over the position within the segment.
// Highway's per-target include; private to kernels/.
#if defined(BRIGADE_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef BRIGADE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define BRIGADE_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

// Rows of a tile: `count` rows of `padded` floats, `stride` apart.
struct TileRows {
  const float* data;
  int64_t stride;
};

// f32 rows without padding are read in place; all others are widened into `buffer`, zeros behind.
template <typename T>
HWY_INLINE TileRows tile_rows(const T* from, int count, int head_dim, int padded, float* buffer) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (head_dim == padded) return {from, head_dim};
  }
  const int full = head_dim / 16 * 16;
  for (int row = 0; row < count; ++row, from += head_dim) {
    float* to = buffer + row * padded;
    for (int i = 0; i < full; i += 16) store16(load16(from + i), to + i);
    if (full < padded) store16(load_first(from + full, head_dim - full), to + full);
  }
  return {buffer, padded};
}

// scores[i] = q . row i.
HWY_INLINE void score_tile(const float* q, TileRows rows, int count, int padded, float* scores) {
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    const float* row = rows.data + i * rows.stride;
    Lanes16 a = zero16(), b = zero16(), c = zero16(), e = zero16();
    for (int lane = 0; lane < padded; lane += 16) {
      const Lanes16 query = load16(q + lane);
      a = mul_add16(query, load16(row + lane), a);
      b = mul_add16(query, load16(row + rows.stride + lane), b);
      c = mul_add16(query, load16(row + 2 * rows.stride + lane), c);
      e = mul_add16(query, load16(row + 3 * rows.stride + lane), e);
    }
    hn::StoreU(sum16_of_4(a, b, c, e), F32x4Tag(), scores + i);
  }
  for (; i < count; ++i) {
    const float* row = rows.data + i * rows.stride;
    Lanes16 sum = zero16();
    for (int lane = 0; lane < padded; lane += 16) {
      sum = mul_add16(load16(q + lane), load16(row + lane), sum);
    }
    scores[i] = sum16(sum);
  }
}

// out[0, 16 * kGroups) += sum over rows of weights[i] * row i.
template <int kGroups>
HWY_INLINE void add_weighted_columns(const float* weights, const float* data, int64_t stride,
                                     int count, float* out) {
  Lanes16 sum[kGroups];
  for (int g = 0; g < kGroups; ++g) sum[g] = load16(out + 16 * g);
  for (int i = 0; i < count; ++i) {
    const Lanes16 weight = set16(weights[i]);
    for (int g = 0; g < kGroups; ++g) {
      sum[g] = mul_add16(weight, load16(data + i * stride + 16 * g), sum[g]);
    }
  }
  for (int g = 0; g < kGroups; ++g) store16(sum[g], out + 16 * g);
}

HWY_INLINE void add_weighted_rows(const float* weights, TileRows rows, int count, int padded,
                                  float* out) {
  int column = 0;
  for (; column + 64 <= padded; column += 64) {
    add_weighted_columns<4>(weights, rows.data + column, rows.stride, count, out + column);
  }
  for (; column + 32 <= padded; column += 32) {
    add_weighted_columns<2>(weights, rows.data + column, rows.stride, count, out + column);
  }
  if (column < padded) {
    add_weighted_columns<1>(weights, rows.data + column, rows.stride, count, out + column);
  }
}

// Turns scores[first, last) of a segment into exp(scale * score - max) and gives max and sum. What
// lies outside the range is selected away, whatever it is.
HWY_INLINE void softmax_segment(float* scores, int first, int last, float scale, float* max,
                                float* sum) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const int begin = first / 16 * 16;
  const Lanes16 factor = set16(scale);
  Lanes16 largest = set16(kLowest);
  for (int i = begin; i < last; i += 16) {
    const Lanes16 scaled =
        select_range(mul16(load16(scores + i), factor), first - i, last - i, kLowest);
    store16(scaled, scores + i);
    largest = max16(largest, scaled);
  }
  *max = largest16(largest);
  const Lanes16 top = set16(*max);
  Lanes16 total = zero16();
  for (int i = begin; i < last; i += 16) {
    const Lanes16 weight = exp16(sub16(load16(scores + i), top));  // 0 outside the range
    store16(weight, scores + i);
    total = add16(total, weight);
  }
  *sum = sum16(total);
}

// Adds a segment's partial result to what earlier segments gave (sum 0: nothing yet).
HWY_INLINE void merge_partial(float partial_max, float partial_sum, const float* partial, int padded,
                              float* max, float* sum, float* acc) {
  if (*sum == 0) {
    *max = partial_max;
    *sum = partial_sum;
    for (int i = 0; i < padded; i += 16) store16(load16(partial + i), acc + i);
    return;
  }
  const float top = partial_max > *max ? partial_max : *max;
  const float keep = hn::GetLane(exp_f32(F32Tag(), hn::Set(F32Tag(), *max - top)));
  const float take = hn::GetLane(exp_f32(F32Tag(), hn::Set(F32Tag(), partial_max - top)));
  *max = top;
  *sum = std::fma(*sum, keep, partial_sum * take);
  const Lanes16 keep16 = set16(keep), take16 = set16(take);
  for (int i = 0; i < padded; i += 16) {
    store16(mul_add16(load16(acc + i), keep16, mul16(load16(partial + i), take16)), acc + i);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRIGADE_KERNELS_CPU_ATTENTION_TILE_INL_H_
