#include "kernels/cpu/cpu_kernels.h"

#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

template <typename T>
void widen_row(const T* from, float* to, int width) {
  const int full = width / 16 * 16;
  for (int i = 0; i < full; i += 16) store16(load16(from + i), to + i);
  if (full < width) store_first(load_first(from + full, width - full), to + full, width - full);
}

template <typename T>
void embedding_rows_of(const EmbeddingArgs& args, int first, int last) {
  const T* table = static_cast<const T*>(args.table);
  for (int64_t row = first; row < last; ++row) {
    const int64_t id = args.ids[row];
    float* out = args.out + row * args.hidden;
    if (id < 0 || id >= args.vocab) {
      std::memset(out, 0, sizeof(float) * static_cast<size_t>(args.hidden));
    } else {
      widen_row(table + id * args.hidden, out, args.hidden);
    }
  }
}

void embedding_rows(const EmbeddingArgs& args, int first, int last) {
  switch (args.table_dtype) {
    case DType::kBF16: return embedding_rows_of<hwy::bfloat16_t>(args, first, last);
    case DType::kF16: return embedding_rows_of<hwy::float16_t>(args, first, last);
    default: return embedding_rows_of<float>(args, first, last);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(embedding_rows);

void cpu::embedding(const EmbeddingArgs& args, ThreadPool& threads) {
  for_row_pieces(threads, args.rows, args.hidden, [&](int first, int last) {
    HWY_DYNAMIC_DISPATCH(embedding_rows)(args, first, last);
  });
}

}  // namespace brigade::kernels
#endif  // HWY_ONCE
