// Register tiles for one instruction set; see gemm_tiles.h. Included once per target by the files
// of the formats. A format says how 16 outputs of one k become f32 vectors.
#if defined(BRIGADE_GEMM_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_GEMM_TILES_INL_H_
#undef BRIGADE_GEMM_TILES_INL_H_
#else
#define BRIGADE_GEMM_TILES_INL_H_
#endif

#include <algorithm>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/gemm_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A panel of 16 outputs is one AVX-512 vector, two AVX2 vectors, four NEON vectors.
using PanelTag = hn::CappedTag<float, kPanelOutputs>;
using PanelVector = hn::Vec<PanelTag>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(PanelTag()));
inline constexpr int kVectors = kPanelOutputs / kLanes;

struct F32Format {
  static constexpr size_t kBytesPerK = 64;
  template <int kOdd>
  static HWY_INLINE PanelVector load(const uint8_t* at, int v) {
    const PanelTag d;
    return hn::Load(d, reinterpret_cast<const float*>(at + kOdd * 64) + v * kLanes);
  }
};

// A 32-bit word holds k and k + 1 of one output: a shift or a mask widens it.
struct BF16Format {
  static constexpr size_t kBytesPerK = 32;
  template <int kOdd>
  static HWY_INLINE PanelVector load(const uint8_t* at, int v) {
    const PanelTag d;
    const hn::RebindToUnsigned<PanelTag> du;
    const auto words = hn::Load(du, reinterpret_cast<const uint32_t*>(at) + v * kLanes);
    if constexpr (kOdd == 0) return hn::BitCast(d, hn::ShiftLeft<16>(words));
    return hn::BitCast(d, hn::And(words, hn::Set(du, 0xffff0000u)));
  }
};

struct F16Format {
  static constexpr size_t kBytesPerK = 32;
  template <int kOdd>
  static HWY_INLINE PanelVector load(const uint8_t* at, int v) {
    const PanelTag d;
    const hn::Rebind<hwy::float16_t, PanelTag> half;
    return hn::PromoteTo(
        d, hn::Load(half, reinterpret_cast<const hwy::float16_t*>(at + kOdd * 32) + v * kLanes));
  }
};

// Keeps the accumulators of a row in registers and the rows in order. Without it GCC 12 forms the
// products of all rows first, runs out of registers and keeps an accumulator in memory.
HWY_INLINE void pin(PanelVector& v) {
#if HWY_TARGET == HWY_AVX3
  asm volatile("" : "+v"(v.raw));
#elif HWY_TARGET == HWY_AVX2
  asm volatile("" : "+x"(v.raw));
#endif
}

// f(0), ..., f(N - 1) with constant arguments: indices must be constants before the optimizer
// splits arrays of vectors into registers, and unrolled loops come too late for that.
template <class F, int... kIndex>
HWY_INLINE void for_each_constant(std::integer_sequence<int, kIndex...>, F&& f) {
  (f(std::integral_constant<int, kIndex>()), ...);
}
template <int N, class F>
HWY_INLINE void unrolled(F&& f) {
  for_each_constant(std::make_integer_sequence<int, N>(), f);
}
#define BRIGADE_EACH(i) [&](auto i) HWY_ATTR __attribute__((always_inline))

template <int R, int P>
struct Accumulators {
  PanelVector v[R][P][kVectors];
};

template <class Format, int R, int P, int kOdd>
HWY_INLINE void add_k(const uint8_t* const (&panels)[P], size_t offset,
                      const float* const (&rows)[R], int64_t k, Accumulators<R, P>& sums) {
  const PanelTag d;
  PanelVector weights[P][kVectors];
  unrolled<P>(BRIGADE_EACH(p) {
    unrolled<kVectors>(
        BRIGADE_EACH(v) { weights[p][v] = Format::template load<kOdd>(panels[p] + offset, v); });
  });
  unrolled<R>(BRIGADE_EACH(r) {
    const PanelVector a = hn::Set(d, rows[r][k + kOdd]);
    unrolled<P>(BRIGADE_EACH(p) {
      unrolled<kVectors>(BRIGADE_EACH(v) {
        sums.v[r][p][v] = hn::MulAdd(a, weights[p][v], sums.v[r][p][v]);
        pin(sums.v[r][p][v]);
      });
    });
  });
}

// One FMA chain over [k0, k0 + count) for every output of the tile; joins the totals.
template <class Format, int R, int P>
HWY_INLINE void add_block(const uint8_t* const (&panels)[P], const float* const (&rows)[R],
                          int64_t k0, int count, TilePrefetch& prefetch,
                          float* HWY_RESTRICT totals) {
  const PanelTag d;
  Accumulators<R, P> sums;
  unrolled<R>(BRIGADE_EACH(r) {
    unrolled<P>(BRIGADE_EACH(p) {
      unrolled<kVectors>(BRIGADE_EACH(v) { sums.v[r][p][v] = hn::Zero(d); });
    });
  });
  int64_t k = k0;
  const int64_t end = k0 + count;
  for (; k + kTileStep <= end; k += kTileStep) {
    for (int line = 0; line < prefetch.lines; ++line) {
      unrolled<P>(BRIGADE_EACH(p) {
        __builtin_prefetch(prefetch.from[p], 0, 2);
        prefetch.from[p] += 64;
      });
    }
    unrolled<kTileStep / 2>(BRIGADE_EACH(i) {
      add_k<Format, R, P, 0>(panels, (k + 2 * i) * Format::kBytesPerK, rows, k + 2 * i, sums);
      add_k<Format, R, P, 1>(panels, (k + 2 * i) * Format::kBytesPerK, rows, k + 2 * i, sums);
    });
  }
  for (; k + 2 <= end; k += 2) {
    add_k<Format, R, P, 0>(panels, k * Format::kBytesPerK, rows, k, sums);
    add_k<Format, R, P, 1>(panels, k * Format::kBytesPerK, rows, k, sums);
  }
  if (k < end) add_k<Format, R, P, 0>(panels, k * Format::kBytesPerK, rows, k, sums);
  unrolled<R>(BRIGADE_EACH(r) {
    unrolled<P>(BRIGADE_EACH(p) {
      unrolled<kVectors>(BRIGADE_EACH(v) {
        float* at = totals + (r * P + p) * kPanelOutputs + v * kLanes;
        hn::Store(k0 == 0 ? sums.v[r][p][v] : hn::Add(hn::Load(d, at), sums.v[r][p][v]), d, at);
      });
    });
  });
}

template <class Format, int R, int P>
void tile(const TileArgs& args) {
  const uint8_t* panels[P];
  const float* rows[R];
  unrolled<P>(BRIGADE_EACH(p) { panels[p] = args.panels[p]; });
  unrolled<R>(BRIGADE_EACH(r) { rows[r] = args.rows[r]; });
  TilePrefetch prefetch = args.prefetch;
  for (int64_t k0 = 0; k0 < args.k; k0 += kBlockK) {
    add_block<Format, R, P>(panels, rows, k0,
                            static_cast<int>(std::min<int64_t>(kBlockK, args.k - k0)), prefetch,
                            args.totals);
  }
}

// Tiles of P panels for every number of rows in [kFirst, kLast].
template <class Format, int P, int kFirst, int kLast>
void fill(TileSet& set) {
  unrolled<kLast - kFirst + 1>([&](auto i) {
    constexpr int kRows = kFirst + decltype(i)::value;
    set.tiles[kRows][P] = tile<Format, kRows, P>;
    set.lanes[kRows] = P;
  });
}

// AVX-512 has 32 registers: up to 24 accumulators. AVX2 has 16: up to 12, two a panel.
template <class Format>
TileSet make_tile_set() {
  TileSet set;
#if HWY_TARGET == HWY_AVX3
  set.max_rows = 12;
  fill<Format, 1, 1, 12>(set);
  fill<Format, 2, 6, 12>(set);
  fill<Format, 3, 7, 8>(set);
  fill<Format, 4, 1, 6>(set);
  set.lanes_of_several = 2;
#else
  set.max_rows = 6;
  fill<Format, 1, 1, 6>(set);
  fill<Format, 2, 2, 3>(set);
  fill<Format, 4, 1, 1>(set);
#endif
  return set;
}

}  // namespace HWY_NAMESPACE
}  // namespace brigade::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard toggled per target
