// RMS norm of one row, for the norm itself and for the sum of answers that is normed at once. Highway's
// per-target include; private to kernels/.
#if defined(BRIGADE_KERNELS_CPU_RMS_NORM_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_KERNELS_CPU_RMS_NORM_ROW_INL_H_
#undef BRIGADE_KERNELS_CPU_RMS_NORM_ROW_INL_H_
#else
#define BRIGADE_KERNELS_CPU_RMS_NORM_ROW_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

// out may be x.
inline void rms_norm_row(const float* x, const float* weight, float* out, int hidden, float eps) {
  const int full = hidden / 16 * 16;
  const int rest = hidden - full;
  Lanes16 squares = zero16();
  for (int i = 0; i < full; i += 16) {
    const Lanes16 v = load16(x + i);
    squares = mul_add16(v, v, squares);
  }
  if (rest > 0) {
    const Lanes16 v = load_first(x + full, rest);
    squares = mul_add16(v, v, squares);
  }
  const float mean = sum16(squares) / static_cast<float>(hidden);
  const Lanes16 inverse = set16(1.0f / std::sqrt(mean + eps));
  for (int i = 0; i < full; i += 16) {
    store16(mul16(mul16(load16(x + i), inverse), load16(weight + i)), out + i);
  }
  if (rest > 0) {
    const Lanes16 normed = mul16(load_first(x + full, rest), inverse);
    store_first(mul16(normed, load_first(weight + full, rest)), out + full, rest);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRIGADE_KERNELS_CPU_RMS_NORM_ROW_INL_H_
