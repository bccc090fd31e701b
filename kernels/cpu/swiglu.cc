#include "kernels/cpu/swiglu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void swiglu_vectors(const float* gate, const float* up, int count, float* out) {
  const hn::CappedTag<float, 16> d;
  for (int i = 0; i < count; i += static_cast<int>(hn::Lanes(d))) {
    const auto g = hn::Load(d, gate + i);
    const auto exp = kernels::HWY_NAMESPACE::exp_f32(d, hn::Neg(g));
    const auto silu = hn::Div(g, hn::Add(hn::Set(d, 1.0f), exp));
    hn::Store(hn::Mul(silu, hn::Load(d, up + i)), d, out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace brigade::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels::cpu {

HWY_EXPORT(swiglu_vectors);
void swiglu(const float* gate, const float* up, int count, float* out) {
  HWY_DYNAMIC_DISPATCH(swiglu_vectors)(gate, up, count, out);
}

}  // namespace brigade::kernels::cpu
#endif
