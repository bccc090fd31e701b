#include "kernels/cpu/attention_scratch.h"

#include <algorithm>

#include "kernels/ops/attention.h"

namespace brigade::kernels::cpu {
namespace {

constexpr size_t kAlignment = 64;
constexpr int kQueryScalars = 6;  // max, sum, partial_max, partial_sum, first, last

size_t whole_lines(size_t floats) { return (floats + 15) / 16 * 16; }

size_t space_floats(int queries, int padded) {
  const size_t vectors = size_t(queries) * 3 * padded;
  const size_t tile = size_t(kTilePositions) * padded;
  return vectors + tile + size_t(queries) * kKvSegment + kQueryScalars * whole_lines(queries);
}

size_t partial_floats(int group, int padded) {
  return size_t(group) * padded + 2 * whole_lines(group);
}

}  // namespace

size_t AttentionScratch::bytes(int max_rows, int heads, int head_dim, int threads) {
  // A unit has at most kRowsPerUnit rows, and a KV head at most all heads.
  const int queries = std::min(std::max(max_rows, 1), kRowsPerUnit) * heads;
  const int padded = padded_head_dim(head_dim);
  const size_t floats = size_t(threads) * space_floats(queries, padded) +
                        size_t(slots(threads) + units(threads)) * partial_floats(heads, padded);
  return floats * sizeof(float) + kAlignment;
}

AttentionScratch::AttentionScratch(void* memory, int queries, int group, int head_dim, int threads)
    : queries_(queries), group_(group), padded_(padded_head_dim(head_dim)), threads_(threads) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  memory_ = reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  partials_ = memory_ + size_t(threads) * space_floats(queries_, padded_);
}

AttentionSpace AttentionScratch::space(int thread) const {
  float* next = memory_ + size_t(thread) * space_floats(queries_, padded_);
  const auto take = [&next](size_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  };
  const size_t vectors = size_t(queries_) * padded_;
  const size_t scalars = whole_lines(queries_);
  AttentionSpace space;
  space.q = take(vectors);
  space.acc = take(vectors);
  space.partial = take(vectors);
  space.scores = take(size_t(queries_) * kKvSegment);
  space.tile = take(size_t(kTilePositions) * padded_);
  space.max = take(scalars);
  space.sum = take(scalars);
  space.partial_max = take(scalars);
  space.partial_sum = take(scalars);
  space.first = reinterpret_cast<int32_t*>(take(scalars));
  space.last = reinterpret_cast<int32_t*>(take(scalars));
  return space;
}

AttentionPartial AttentionScratch::slot(int index) const { return partial(index); }

AttentionPartial AttentionScratch::unit(int index) const {
  return partial(slots(threads_) + index);
}

AttentionPartial AttentionScratch::partial(int index) const {
  float* from = partials_ + size_t(index) * partial_floats(group_, padded_);
  AttentionPartial partial;
  partial.max = from;
  partial.sum = from + whole_lines(group_);
  partial.acc = from + 2 * whole_lines(group_);
  return partial;
}

}  // namespace brigade::kernels::cpu
