#include "kernels/cpu/cpu_kernels.h"

#include <cmath>

#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

void rms_norm_row(const float* x, const float* weight, float* out, int hidden, float eps) {
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

void rms_norm_rows(const RmsNormArgs& args, int first, int last) {
  for (int64_t row = first; row < last; ++row) {
    rms_norm_row(args.x + row * args.x_stride, args.weight, args.out + row * args.out_stride,
                 args.hidden, args.eps);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(rms_norm_rows);

void cpu::rms_norm(const RmsNormArgs& args, ThreadPool& threads) {
  for_row_pieces(threads, args.rows, args.hidden, [&](int first, int last) {
    HWY_DYNAMIC_DISPATCH(rms_norm_rows)(args, first, last);
  });
}

}  // namespace brigade::kernels
#endif  // HWY_ONCE
