#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/core/half.h"
#include "kernels/reference/reference.h"

namespace brigade::kernels::reference {
namespace {

// Index of an element of the layer, counted in elements from the start of its block.
int64_t element_index(const KvLayerView& cache, bool value, int64_t head, int64_t offset, int64_t i) {
  const int64_t plane = head + (value ? cache.kv_heads : 0);
  return (plane * cache.block_size + offset) * cache.head_dim + i;
}

char* block_start(const KvLayerView& cache, int64_t block) {
  return static_cast<char*>(cache.data) + block * cache.block_stride_bytes;
}

void write_element(const KvLayerView& cache, int64_t block, int64_t index, float value) {
  char* start = block_start(cache, block);
  switch (cache.dtype) {
    case DType::kBF16: reinterpret_cast<uint16_t*>(start)[index] = f32_to_bf16(value); break;
    case DType::kF16: reinterpret_cast<uint16_t*>(start)[index] = f32_to_f16(value); break;
    default: reinterpret_cast<float*>(start)[index] = value; break;
  }
}

std::vector<float> rotate(const RopeKvWriteArgs& args, const float* head, int64_t position) {
  std::vector<float> turned(head, head + args.cache.head_dim);
  const int half = args.rotary_dim / 2;
  for (int i = 0; i < half; ++i) {
    const bool split = args.pairing == RopePairing::kSplitHalves;
    const int a = split ? i : 2 * i;
    const int b = split ? i + half : 2 * i + 1;
    const double cos = args.cos_table[position * half + i];
    const double sin = args.sin_table[position * half + i];
    turned[a] = static_cast<float>(head[a] * cos - head[b] * sin);
    turned[b] = static_cast<float>(head[b] * cos + head[a] * sin);
  }
  return turned;
}

}  // namespace

void rope_kv_write(const RopeKvWriteArgs& args) {
  const KvLayerView& cache = args.cache;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t head = 0; head < args.heads; ++head) {
      float* q = args.q + row * args.q_stride + head * cache.head_dim;
      const std::vector<float> turned = rotate(args, q, args.positions[row]);
      std::copy(turned.begin(), turned.end(), q);
    }
    const int64_t slot = args.slots[row];
    if (slot < 0) continue;
    const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
    for (int64_t head = 0; head < cache.kv_heads; ++head) {
      const float* k = args.k + row * args.k_stride + head * cache.head_dim;
      const float* v = args.v + row * args.v_stride + head * cache.head_dim;
      const std::vector<float> turned = rotate(args, k, args.positions[row]);
      for (int i = 0; i < cache.head_dim; ++i) {
        write_element(cache, block, element_index(cache, false, head, offset, i), turned[i]);
        write_element(cache, block, element_index(cache, true, head, offset, i), v[i]);
      }
    }
  }
}

void paged_attention(const PagedAttentionArgs& args) {
  const KvLayerView& cache = args.cache;
  const auto read = [&](int64_t row, int position, bool value, int64_t head, int i) {
    const int64_t table = int64_t{args.row_sequence[row]} * args.max_blocks;
    const int64_t block = args.block_tables[table + position / cache.block_size];
    return read_element(block_start(cache, block), cache.dtype,
                        element_index(cache, value, head, position % cache.block_size, i));
  };
  for (int64_t row = 0; row < args.rows; ++row) {
    const int last = args.row_position[row];
    const int first = args.window > 0 ? std::max(0, last + 1 - args.window) : 0;
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t kv_head = head / (args.heads / cache.kv_heads);
      const float* q = args.q + row * args.q_stride + head * cache.head_dim;
      float* out = args.out + row * args.out_stride + head * cache.head_dim;
      std::vector<double> weights(last + 1, 0.0);
      double top = -HUGE_VAL, total = 0;
      for (int p = first; p <= last; ++p) {
        for (int i = 0; i < cache.head_dim; ++i) weights[p] += q[i] * read(row, p, false, kv_head, i);
        weights[p] *= args.scale;
        top = std::max(top, weights[p]);
      }
      for (int p = first; p <= last; ++p) total += weights[p] = std::exp(weights[p] - top);
      for (int i = 0; i < cache.head_dim; ++i) {
        double sum = 0;
        for (int p = first; p <= last; ++p) sum += weights[p] * read(row, p, true, kv_head, i);
        out[i] = static_cast<float>(sum / total);
      }
    }
  }
}

}  // namespace brigade::kernels::reference
