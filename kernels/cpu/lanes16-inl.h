// Sixteen virtual f32 lanes, the unit of the numerics contract: one register on AVX-512, two on AVX2,
// four on NEON. Loads widen bf16 and f16, stores round to nearest even, sum16 adds over one fixed
// tree; so no bit depends on the width of the registers. Highway's per-target include; private to
// kernels/.
#if defined(BRIGADE_KERNELS_CPU_LANES16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_KERNELS_CPU_LANES16_INL_H_
#undef BRIGADE_KERNELS_CPU_LANES16_INL_H_
#else
#define BRIGADE_KERNELS_CPU_LANES16_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::CappedTag<float, 16>;
using F32x4Tag = hn::CappedTag<float, 4>;
using F32Vec = hn::Vec<F32Tag>;
inline constexpr size_t kPartLanes = HWY_MIN(HWY_MAX_BYTES / sizeof(float), 16);
inline constexpr size_t kParts = 16 / kPartLanes;

struct Lanes16 {
  F32Vec part[kParts];
};

HWY_INLINE Lanes16 set16(float value) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Set(F32Tag(), value);
  return out;
}
HWY_INLINE Lanes16 zero16() { return set16(0.0f); }

HWY_INLINE Lanes16 load16(const float* from) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::LoadU(F32Tag(), from + i * kPartLanes);
  return out;
}
HWY_INLINE Lanes16 load16(const hwy::bfloat16_t* from) {
  const hn::Rebind<uint32_t, F32Tag> d32;
  const hn::Rebind<uint16_t, F32Tag> d16;
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) {
    const auto half = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from) + i * kPartLanes);
    out.part[i] = hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(d32, half)));
  }
  return out;
}
HWY_INLINE Lanes16 load16(const hwy::float16_t* from) {
  const hn::Rebind<hwy::float16_t, F32Tag> d16;
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) {
    out.part[i] = hn::PromoteTo(F32Tag(), hn::LoadU(d16, from + i * kPartLanes));
  }
  return out;
}

HWY_INLINE void store16(const Lanes16& lanes, float* to) {
  for (size_t i = 0; i < kParts; ++i) hn::StoreU(lanes.part[i], F32Tag(), to + i * kPartLanes);
}
HWY_INLINE void store16(const Lanes16& lanes, hwy::bfloat16_t* to) {
  const hn::Rebind<uint32_t, F32Tag> d32;
  const hn::Rebind<int32_t, F32Tag> di32;
  const hn::Rebind<uint16_t, F32Tag> d16;
  for (size_t i = 0; i < kParts; ++i) {
    const auto bits = hn::BitCast(d32, lanes.part[i]);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(d32, 1));
    auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF))));
    const auto number = hn::RebindMask(d32, hn::Eq(lanes.part[i], lanes.part[i]));
    rounded = hn::IfThenElse(number, rounded, hn::Or(upper, hn::Set(d32, 0x40)));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, rounded)), d16,
               reinterpret_cast<uint16_t*>(to) + i * kPartLanes);
  }
}
HWY_INLINE void store16(const Lanes16& lanes, hwy::float16_t* to) {
  const hn::Rebind<hwy::float16_t, F32Tag> d16;
  for (size_t i = 0; i < kParts; ++i) {
    hn::StoreU(hn::DemoteTo(d16, lanes.part[i]), d16, to + i * kPartLanes);
  }
}

// The first `count` < 16 elements; the other lanes are zero (load) or not written (store).
template <typename T>
HWY_INLINE Lanes16 load_first(const T* from, size_t count) {
  T buffer[16];
  std::memset(buffer, 0, sizeof(buffer));
  std::memcpy(buffer, from, count * sizeof(T));
  return load16(buffer);
}
template <typename T>
HWY_INLINE void store_first(const Lanes16& lanes, T* to, size_t count) {
  T buffer[16];
  store16(lanes, buffer);
  std::memcpy(to, buffer, count * sizeof(T));
}

HWY_INLINE Lanes16 add16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Add(a.part[i], b.part[i]);
  return out;
}
HWY_INLINE Lanes16 sub16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Sub(a.part[i], b.part[i]);
  return out;
}
HWY_INLINE Lanes16 mul16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Mul(a.part[i], b.part[i]);
  return out;
}
// a * b + c, rounded once.
HWY_INLINE Lanes16 mul_add16(const Lanes16& a, const Lanes16& b, const Lanes16& c) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::MulAdd(a.part[i], b.part[i], c.part[i]);
  return out;
}
// a * b - c, rounded once.
HWY_INLINE Lanes16 mul_sub16(const Lanes16& a, const Lanes16& b, const Lanes16& c) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::MulSub(a.part[i], b.part[i], c.part[i]);
  return out;
}
HWY_INLINE Lanes16 div16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Div(a.part[i], b.part[i]);
  return out;
}
HWY_INLINE Lanes16 max16(const Lanes16& a, const Lanes16& b) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = hn::Max(a.part[i], b.part[i]);
  return out;
}
HWY_INLINE Lanes16 exp16(const Lanes16& x) {
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) out.part[i] = exp_f32(F32Tag(), x.part[i]);
  return out;
}

// lanes where first <= lane < last, others `otherwise`.
HWY_INLINE Lanes16 select_range(const Lanes16& lanes, int first, int last, float otherwise) {
  const hn::RebindToSigned<F32Tag> di;
  Lanes16 out;
  for (size_t i = 0; i < kParts; ++i) {
    const auto lane = hn::Iota(di, static_cast<int32_t>(i * kPartLanes));
    const auto inside = hn::And(hn::Gt(lane, hn::Set(di, first - 1)),
                                hn::Lt(lane, hn::Set(di, last)));
    out.part[i] = hn::IfThenElse(hn::RebindMask(F32Tag(), inside), lanes.part[i],
                                 hn::Set(F32Tag(), otherwise));
  }
  return out;
}

// The tree's first levels: lane i takes lane i + 8, then i + 4, by `combine`. Four lanes remain.
template <class Combine>
HWY_INLINE hn::Vec<F32x4Tag> fold_to_4(Lanes16 lanes, Combine combine) {
  if constexpr (kParts == 4) {
    return combine(combine(lanes.part[0], lanes.part[2]), combine(lanes.part[1], lanes.part[3]));
  } else if constexpr (kParts == 2) {
    const hn::Half<F32Tag> half;
    const F32Vec eight = combine(lanes.part[0], lanes.part[1]);
    return combine(hn::LowerHalf(half, eight), hn::UpperHalf(half, eight));
  } else {
    const hn::Half<F32Tag> half;
    const hn::Half<hn::Half<F32Tag>> quarter;
    const auto eight = combine(hn::LowerHalf(half, lanes.part[0]), hn::UpperHalf(half, lanes.part[0]));
    return combine(hn::LowerHalf(quarter, eight), hn::UpperHalf(quarter, eight));
  }
}

struct AddLanes {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const { return hn::Add(a, b); }
};
struct MaxLanes16 {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const { return hn::Max(a, b); }
};

template <class Combine>
HWY_INLINE float reduce16(const Lanes16& lanes, Combine combine) {
  auto four = fold_to_4(lanes, combine);
  four = combine(four, hn::Shuffle1032(four));
  four = combine(four, hn::Shuffle2301(four));
  return hn::GetLane(four);
}
// (i, i + 8), then (i, i + 4), (i, i + 2), (i, i + 1).
HWY_INLINE float sum16(const Lanes16& lanes) { return reduce16(lanes, AddLanes()); }
HWY_INLINE float largest16(const Lanes16& lanes) { return reduce16(lanes, MaxLanes16()); }

// Four sums at once, each over the same tree as sum16.
HWY_INLINE hn::Vec<F32x4Tag> sum16_of_4(const Lanes16& a, const Lanes16& b, const Lanes16& c,
                                        const Lanes16& e) {
  const F32x4Tag d4;
  const auto fa = fold_to_4(a, AddLanes()), fb = fold_to_4(b, AddLanes());
  const auto fc = fold_to_4(c, AddLanes()), fe = fold_to_4(e, AddLanes());
  const auto ab = hn::Add(hn::ConcatLowerLower(d4, fb, fa), hn::ConcatUpperUpper(d4, fb, fa));
  const auto ce = hn::Add(hn::ConcatLowerLower(d4, fe, fc), hn::ConcatUpperUpper(d4, fe, fc));
  return hn::Add(hn::ConcatEven(d4, ce, ab), hn::ConcatOdd(d4, ce, ab));
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BRIGADE_KERNELS_CPU_LANES16_INL_H_
