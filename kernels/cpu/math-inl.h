// exp on vectors of f32, the same bits as exp_f32 on every instruction set: only fused multiply-adds,
// additions and integer arithmetic. Highway's per-target include; private to kernels/.
#if defined(BRIGADE_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_KERNELS_CPU_MATH_INL_H_
#undef BRIGADE_KERNELS_CPU_MATH_INL_H_
#else
#define BRIGADE_KERNELS_CPU_MATH_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/ops/math_constants.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2; exp(r) by a polynomial.
// 0 below -87, inf above 88, NaN for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_f32(D d, V x) {
  namespace c = exp_f32_constants;
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, c::kRoundMagic);
  const V shifted = hn::MulAdd(x, hn::Set(d, c::kLog2E), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::MulAdd(n, hn::Set(d, -c::kLn2High), x);
  r = hn::MulAdd(n, hn::Set(d, -c::kLn2Low), r);
  V p = hn::Set(d, c::kPolynomial[0]);
  for (int i = 1; i < c::kTerms; ++i) p = hn::MulAdd(p, r, hn::Set(d, c::kPolynomial[i]));
  // The magic number left n in the low bits: shifting them up makes the exponent of 2^n.
  const auto power = hn::Add(hn::ShiftLeft<23>(hn::BitCast(di, shifted)),
                             hn::Set(di, c::kOneBits));
  V y = hn::Mul(p, hn::BitCast(d, power));
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, c::kLowest)), hn::Zero(d), y);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, c::kHighest)), hn::Set(d, c::kInfinity), y);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRIGADE_KERNELS_CPU_MATH_INL_H_
