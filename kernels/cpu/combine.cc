#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/combine.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/rms_norm_row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

// Sum over k in rising order for the 16 columns (or the last few) that start at `answers`.
template <typename T>
HWY_INLINE Lanes16 weighted_answers(const T* answers, const float* gates, int top_k, int64_t hidden,
                                    int columns) {
  Lanes16 sum = zero16();
  for (int k = 0; k < top_k; ++k) {
    const T* from = answers + k * hidden;
    const Lanes16 answer = columns == 16 ? load16(from) : load_first(from, columns);
    sum = mul_add16(set16(gates == nullptr ? 1.0f : gates[k]), answer, sum);
  }
  return sum;
}

template <typename T>
void combine_rows_of(const CombineArgs& args, int first, int last) {
  const int full = args.hidden / 16 * 16;
  const int rest = args.hidden - full;
  for (int64_t row = first; row < last; ++row) {
    const T* answers = static_cast<const T*>(args.answers) + row * args.top_k * args.hidden;
    const float* gates = args.gates == nullptr ? nullptr : args.gates + row * args.top_k;
    float* residual = args.residual + row * args.hidden;
    for (int i = 0; i < full; i += 16) {
      const Lanes16 sum = weighted_answers(answers + i, gates, args.top_k, args.hidden, 16);
      store16(add16(load16(residual + i), sum), residual + i);
    }
    if (rest > 0) {
      const Lanes16 sum = weighted_answers(answers + full, gates, args.top_k, args.hidden, rest);
      store_first(add16(load_first(residual + full, rest), sum), residual + full, rest);
    }
    if (args.norm_weight != nullptr) {
      rms_norm_row(residual, args.norm_weight, args.normed + row * args.hidden, args.hidden,
                   args.norm_eps);
    }
  }
}

void combine_rows(const CombineArgs& args, int first, int last) {
  switch (args.answer_dtype) {
    case DType::kBF16: return combine_rows_of<hwy::bfloat16_t>(args, first, last);
    case DType::kF16: return combine_rows_of<hwy::float16_t>(args, first, last);
    default: return combine_rows_of<float>(args, first, last);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(combine_rows);

void cpu::combine(const CombineArgs& args, ThreadPool& threads) {
  const int64_t elements = static_cast<int64_t>(args.hidden) * (args.top_k + 1);
  for_row_pieces(threads, args.rows, elements, [&](int first, int last) {
    HWY_DYNAMIC_DISPATCH(combine_rows)(args, first, last);
  });
}

}  // namespace brigade::kernels
#endif  // HWY_ONCE
