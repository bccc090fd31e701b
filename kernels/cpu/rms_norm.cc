#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/rms_norm_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

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
