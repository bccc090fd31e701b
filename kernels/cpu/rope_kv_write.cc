#include "kernels/cpu/cpu_kernels.h"

#include <cmath>

#include "kernels/core/check.h"
#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope_kv_write.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

// (a, b) turns to (a cos - b sin, b cos + a sin); in both forms one product is rounded, the other
// fused, so that every lane has the same bits wherever it lies.
HWY_INLINE void rotate_split_16(const Lanes16& a, const Lanes16& b, const Lanes16& cos,
                                const Lanes16& sin, Lanes16& turned_a, Lanes16& turned_b) {
  turned_a = mul_sub16(a, cos, mul16(b, sin));
  turned_b = mul_add16(b, cos, mul16(a, sin));
}

// `from` and `to` may be the same head.
void rotate_split(const float* from, float* to, const float* cos, const float* sin, int half) {
  Lanes16 turned_a, turned_b;
  const int full = half / 16 * 16;
  for (int i = 0; i < full; i += 16) {
    rotate_split_16(load16(from + i), load16(from + half + i), load16(cos + i), load16(sin + i),
                    turned_a, turned_b);
    store16(turned_a, to + i);
    store16(turned_b, to + half + i);
  }
  if (const int rest = half - full; rest > 0) {
    rotate_split_16(load_first(from + full, rest), load_first(from + half + full, rest),
                    load_first(cos + full, rest), load_first(sin + full, rest), turned_a, turned_b);
    store_first(turned_a, to + full, rest);
    store_first(turned_b, to + half + full, rest);
  }
}

void rotate_interleaved(const float* from, float* to, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = from[2 * i];
    const float b = from[2 * i + 1];
    to[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
    to[2 * i + 1] = std::fma(b, cos[i], a * sin[i]);
  }
}

void rotate_head(const RopeKvWriteArgs& args, const float* from, float* to, int64_t position) {
  const int half = args.rotary_dim / 2;
  const float* cos = args.cos_table + position * half;
  const float* sin = args.sin_table + position * half;
  if (args.pairing == RopePairing::kInterleaved) {
    rotate_interleaved(from, to, cos, sin, half);
  } else {
    rotate_split(from, to, cos, sin, half);
  }
  if (from != to) {
    std::memcpy(to + args.rotary_dim, from + args.rotary_dim,
                sizeof(float) * static_cast<size_t>(args.cache.head_dim - args.rotary_dim));
  }
}

template <typename T>
void narrow_row(const float* from, T* to, int width) {
  const int full = width / 16 * 16;
  for (int i = 0; i < full; i += 16) store16(load16(from + i), to + i);
  if (full < width) store_first(load_first(from + full, width - full), to + full, width - full);
}

// Writes all KV heads of one row at its slot.
template <typename T>
void write_kv_row(const RopeKvWriteArgs& args, int64_t row, int64_t position) {
  const KvLayerView& cache = args.cache;
  const int64_t slot = args.slots[row];
  if (slot < 0) return;
  const int64_t block = slot / cache.block_size;
  const int64_t offset = slot % cache.block_size;
  CHECK(block < cache.num_blocks);
  const int64_t head_stride = static_cast<int64_t>(cache.block_size) * cache.head_dim;
  T* keys = reinterpret_cast<T*>(static_cast<char*>(cache.data) + block * cache.block_stride_bytes) +
            offset * cache.head_dim;
  T* values = keys + cache.kv_heads * head_stride;
  alignas(64) float turned[kMaxHeadDim];
  for (int64_t head = 0; head < cache.kv_heads; ++head) {
    rotate_head(args, args.k + row * args.k_stride + head * cache.head_dim, turned, position);
    narrow_row(turned, keys + head * head_stride, cache.head_dim);
    narrow_row(args.v + row * args.v_stride + head * cache.head_dim, values + head * head_stride,
               cache.head_dim);
  }
}

void rope_kv_write_rows(const RopeKvWriteArgs& args, int first, int last) {
  for (int64_t row = first; row < last; ++row) {
    const int64_t position = args.positions[row];
    CHECK(position >= 0 && position < args.max_positions);
    for (int64_t head = 0; head < args.heads; ++head) {
      float* q = args.q + row * args.q_stride + head * args.cache.head_dim;
      rotate_head(args, q, q, position);
    }
    switch (args.cache.dtype) {
      case DType::kBF16: write_kv_row<hwy::bfloat16_t>(args, row, position); break;
      case DType::kF16: write_kv_row<hwy::float16_t>(args, row, position); break;
      default: write_kv_row<float>(args, row, position); break;
    }
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(rope_kv_write_rows);

void cpu::rope_kv_write(const RopeKvWriteArgs& args, ThreadPool& threads) {
  const int64_t elements =
      static_cast<int64_t>(args.heads + 2 * args.cache.kv_heads) * args.cache.head_dim;
  for_row_pieces(threads, args.rows, elements, [&](int first, int last) {
    HWY_DYNAMIC_DISPATCH(rope_kv_write_rows)(args, first, last);
  });
}

}  // namespace brigade::kernels
#endif  // HWY_ONCE
