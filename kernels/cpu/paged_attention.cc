#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/ops/path_counters.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

using cpu::AttentionPartial;
using cpu::AttentionSpace;

// Rows [row_begin, row_end) of one sequence with the heads that share `kv_head`.
struct Unit {
  int row_begin;
  int row_end;
  int kv_head;
  int group;   // heads per KV head
  int padded;  // head_dim rounded up to 16
  int queries() const { return (row_end - row_begin) * group; }
};

void load_queries(const PagedAttentionArgs& args, const Unit& unit, const AttentionSpace& space) {
  const int head_dim = args.cache.head_dim;
  int query = 0;
  for (int64_t row = unit.row_begin; row < unit.row_end; ++row) {
    const int32_t position = args.row_position[row];
    CHECK(position >= 0 && position / args.cache.block_size < args.max_blocks);
    for (int i = 0; i < unit.group; ++i, ++query) {
      const int64_t head = int64_t{unit.kv_head} * unit.group + i;
      float* q = space.q + int64_t{query} * unit.padded;
      std::memset(q, 0, sizeof(float) * unit.padded);
      std::memcpy(q, args.q + row * args.q_stride + head * head_dim, sizeof(float) * head_dim);
      space.last[query] = position + 1;
      space.first[query] = args.window > 0 ? std::max(0, position + 1 - args.window) : 0;
      space.max[query] = -std::numeric_limits<float>::infinity();
      space.sum[query] = 0;
    }
  }
}

// The segment's part of what a query sees; empty when first >= last.
struct Range {
  int first;
  int last;
};
HWY_INLINE Range seen(const AttentionSpace& space, int query, int from, int to) {
  return {std::max<int>(space.first[query], from), std::min<int>(space.last[query], to)};
}

// Calls visit(position, count, rows) for tiles that cover [begin, end), keys or values.
template <typename T, class Visit>
HWY_INLINE void for_tiles(const PagedAttentionArgs& args, const Unit& unit, bool values, int begin,
                          int end, float* buffer, Visit visit) {
  const KvLayerView& cache = args.cache;
  const int64_t sequence = args.row_sequence[unit.row_begin];
  const int32_t* table = args.block_tables + sequence * args.max_blocks;
  const int64_t head = unit.kv_head + (values ? cache.kv_heads : 0);
  for (int position = begin; position < end;) {
    const int block_end = (position / cache.block_size + 1) * cache.block_size;
    const int count = std::min({end, block_end, position + cpu::kTilePositions}) - position;
    const int64_t block = table[position / cache.block_size];
    CHECK(block >= 0 && block < cache.num_blocks);
    const T* from =
        reinterpret_cast<const T*>(static_cast<const char*>(cache.data) +
                                   block * cache.block_stride_bytes) +
        (head * cache.block_size + position % cache.block_size) * cache.head_dim;
    visit(position, count, tile_rows(from, count, cache.head_dim, unit.padded, buffer));
    position += count;
  }
}

// Partial results of one segment for all queries of the unit; those that see nothing of it keep
// their old partial, which nobody reads.
template <typename T>
void segment_partials_of(const PagedAttentionArgs& args, const Unit& unit, int segment,
                         const AttentionSpace& space) {
  const int base = segment * kKvSegment;
  int begin = base + kKvSegment, end = base;
  for (int j = 0; j < unit.queries(); ++j) {
    const Range range = seen(space, j, base, base + kKvSegment);
    if (range.first >= range.last) continue;
    begin = std::min(begin, range.first);
    end = std::max(end, range.last);
  }
  for_tiles<T>(args, unit, false, begin, end, space.tile, [&](int position, int count, TileRows keys) {
    for (int j = 0; j < unit.queries(); ++j) {
      const Range range = seen(space, j, position, position + count);
      if (range.first >= range.last) continue;
      score_tile(space.q + int64_t{j} * unit.padded,
                 {keys.data + (range.first - position) * keys.stride, keys.stride},
                 range.last - range.first, unit.padded,
                 space.scores + int64_t{j} * kKvSegment + (range.first - base));
    }
  });
  for (int j = 0; j < unit.queries(); ++j) {
    const Range range = seen(space, j, base, base + kKvSegment);
    if (range.first >= range.last) continue;
    softmax_segment(space.scores + int64_t{j} * kKvSegment, range.first - base, range.last - base,
                    args.scale, space.partial_max + j, space.partial_sum + j);
    std::memset(space.partial + int64_t{j} * unit.padded, 0, sizeof(float) * unit.padded);
  }
  for_tiles<T>(args, unit, true, begin, end, space.tile, [&](int position, int count, TileRows values) {
    for (int j = 0; j < unit.queries(); ++j) {
      const Range range = seen(space, j, position, position + count);
      if (range.first >= range.last) continue;
      add_weighted_rows(space.scores + int64_t{j} * kKvSegment + (range.first - base),
                        {values.data + (range.first - position) * values.stride, values.stride},
                        range.last - range.first, unit.padded,
                        space.partial + int64_t{j} * unit.padded);
    }
  });
}

void segment_partials(const PagedAttentionArgs& args, const Unit& unit, int segment,
                      const AttentionSpace& space) {
  switch (args.cache.dtype) {
    case DType::kBF16: return segment_partials_of<hwy::bfloat16_t>(args, unit, segment, space);
    case DType::kF16: return segment_partials_of<hwy::float16_t>(args, unit, segment, space);
    default: return segment_partials_of<float>(args, unit, segment, space);
  }
}

void write_out(const PagedAttentionArgs& args, const Unit& unit, int query, float sum,
               const float* acc) {
  const int64_t row = unit.row_begin + query / unit.group;
  const int64_t head = int64_t{unit.kv_head} * unit.group + query % unit.group;
  float* out = args.out + row * args.out_stride + head * args.cache.head_dim;
  const Lanes16 inverse = set16(1.0f / sum);
  const int head_dim = args.cache.head_dim;
  for (int i = 0; i < head_dim; i += 16) {
    const Lanes16 value = mul16(load16(acc + i), inverse);
    if (i + 16 <= head_dim) {
      store16(value, out + i);
    } else {
      store_first(value, out + i, head_dim - i);
    }
  }
}

// One sequence's rows, all segments in order.
void attend_unit(const PagedAttentionArgs& args, const Unit& unit, const AttentionSpace& space) {
  load_queries(args, unit, space);
  int begin = space.first[0], end = space.last[0];
  for (int j = 1; j < unit.queries(); ++j) {
    begin = std::min<int>(begin, space.first[j]);
    end = std::max<int>(end, space.last[j]);
  }
  for (int segment = begin / kKvSegment; segment * kKvSegment < end; ++segment) {
    segment_partials(args, unit, segment, space);
    for (int j = 0; j < unit.queries(); ++j) {
      const Range range = seen(space, j, segment * kKvSegment, (segment + 1) * kKvSegment);
      if (range.first >= range.last) continue;
      const int64_t at = int64_t{j} * unit.padded;
      merge_partial(space.partial_max[j], space.partial_sum[j], space.partial + at, unit.padded,
                    space.max + j, space.sum + j, space.acc + at);
    }
  }
  for (int j = 0; j < unit.queries(); ++j) {
    write_out(args, unit, j, space.sum[j], space.acc + int64_t{j} * unit.padded);
  }
}

// Rows [row_begin, row_end) of any sequences for one KV head.
void attend_rows(const PagedAttentionArgs& args, int row_begin, int row_end, int kv_head,
                 const AttentionSpace& space) {
  const int group = args.heads / args.cache.kv_heads;
  const int padded = cpu::padded_head_dim(args.cache.head_dim);
  for (int begin = row_begin; begin < row_end;) {
    const int32_t sequence = args.row_sequence[begin];
    CHECK(sequence >= 0 && sequence < args.sequences);
    int end = begin + 1;
    while (end < row_end && args.row_sequence[end] == sequence) ++end;
    attend_unit(args, {begin, end, kv_head, group, padded}, space);
    begin = end;
  }
}

// One segment of one row, into a slot.
void attend_segment(const PagedAttentionArgs& args, int row, int kv_head, int segment,
                    const AttentionSpace& space, const AttentionPartial& slot) {
  const Unit unit{row, row + 1, kv_head, args.heads / args.cache.kv_heads,
                  cpu::padded_head_dim(args.cache.head_dim)};
  CHECK(args.row_sequence[row] >= 0 && args.row_sequence[row] < args.sequences);
  load_queries(args, unit, space);
  segment_partials(args, unit, segment, space);
  for (int j = 0; j < unit.group; ++j) {
    slot.max[j] = space.partial_max[j];
    slot.sum[j] = space.partial_sum[j];
  }
  std::memcpy(slot.acc, space.partial, sizeof(float) * unit.padded * unit.group);
}

// Adds the next segment's slot to what a row has so far; writes the row out after the last.
void merge_slot(const PagedAttentionArgs& args, int row, int kv_head, const AttentionPartial& slot,
                const AttentionPartial& so_far, bool last) {
  const Unit unit{row, row + 1, kv_head, args.heads / args.cache.kv_heads,
                  cpu::padded_head_dim(args.cache.head_dim)};
  for (int j = 0; j < unit.group; ++j) {
    const int64_t at = int64_t{j} * unit.padded;
    merge_partial(slot.max[j], slot.sum[j], slot.acc + at, unit.padded, so_far.max + j,
                  so_far.sum + j, so_far.acc + at);
    if (last) write_out(args, unit, j, so_far.sum[j], so_far.acc + at);
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(attend_rows);
HWY_EXPORT(attend_segment);
HWY_EXPORT(merge_slot);

namespace cpu {
namespace {

// Multiply-adds below which no second thread is woken: some 20 us of work.
constexpr int64_t kInlineWork = 400000;
// Fewer segments than this are not worth dividing.
constexpr int kSplitSegments = 4;

struct SegmentRange {
  int begin;
  int end;
};

SegmentRange row_segments(const PagedAttentionArgs& args, int row) {
  const int end = args.row_position[row] + 1;
  const int first = args.window > 0 ? std::max(0, end - args.window) : 0;
  return {first / kKvSegment, (end + kKvSegment - 1) / kKvSegment};
}

// What a call looks like before it is divided.
struct Extent {
  int64_t work = 0;          // multiply-adds of the scores
  int longest_segments = 0;  // of any row
};

Extent measure(const PagedAttentionArgs& args) {
  Extent extent;
  for (int row = 0; row < args.rows; ++row) {
    const int64_t end = args.row_position[row] + 1;
    extent.work += args.window > 0 ? std::min<int64_t>(end, args.window) : end;
    const SegmentRange segments = row_segments(args, row);
    extent.longest_segments = std::max(extent.longest_segments, segments.end - segments.begin);
  }
  extent.work *= int64_t{args.heads} * args.cache.head_dim;
  return extent;
}

void attend_whole_rows(const PagedAttentionArgs& args, ThreadPool& threads, bool alone) {
  const int kv_heads = args.cache.kv_heads;
  const int64_t pairs = int64_t{args.rows} * kv_heads;
  const int wanted = static_cast<int>(pairs / (4 * threads.num_threads()));
  const int rows_per_unit = alone ? std::min(args.rows, kRowsPerUnit)
                                  : std::clamp(wanted, 1, std::min(args.rows, kRowsPerUnit));
  const int chunks = (args.rows + rows_per_unit - 1) / rows_per_unit;
  const AttentionScratch scratch(args.scratch, rows_per_unit * (args.heads / kv_heads),
                                 args.heads / kv_heads, args.cache.head_dim, threads.num_threads());
  const auto attend = [&](int index, int thread) {
    // Later rows of a prompt see more: they go first, so that the last pieces are short ones.
    const int begin = (chunks - 1 - index / kv_heads) * rows_per_unit;
    HWY_DYNAMIC_DISPATCH(attend_rows)
    (args, begin, std::min(args.rows, begin + rows_per_unit), index % kv_heads,
     scratch.space(thread));
  };
  if (alone) {
    for (int index = 0; index < chunks * kv_heads; ++index) attend(index, 0);
  } else {
    threads.parallel_for(chunks * kv_heads, attend);
  }
}

// Few (row, KV head) pairs over long KV: threads take segments, in waves of as many as there are
// slots; the caller merges each wave in order, so the bits are those of attend_whole_rows.
void attend_by_segments(const PagedAttentionArgs& args, ThreadPool& threads, int longest_segments) {
  const int kv_heads = args.cache.kv_heads;
  const int units = args.rows * kv_heads;
  const AttentionScratch scratch(args.scratch, args.heads / kv_heads, args.heads / kv_heads,
                                 args.cache.head_dim, threads.num_threads());
  const int wave = AttentionScratch::slots(threads.num_threads()) / units;
  for (int unit = 0; unit < units; ++unit) {
    const AttentionPartial so_far = scratch.unit(unit);
    std::fill_n(so_far.sum, args.heads / kv_heads, 0.0f);
  }
  for (int done = 0; done < longest_segments; done += wave) {
    threads.parallel_for(units * wave, [&](int index, int thread) {
      const int row = index / wave / kv_heads;
      const SegmentRange segments = row_segments(args, row);
      const int segment = segments.begin + done + index % wave;
      if (segment >= segments.end) return;
      HWY_DYNAMIC_DISPATCH(attend_segment)
      (args, row, index / wave % kv_heads, segment, scratch.space(thread), scratch.slot(index));
    });
    for (int index = 0; index < units * wave; ++index) {
      const int row = index / wave / kv_heads;
      const SegmentRange segments = row_segments(args, row);
      const int segment = segments.begin + done + index % wave;
      if (segment >= segments.end) continue;
      HWY_DYNAMIC_DISPATCH(merge_slot)
      (args, row, index / wave % kv_heads, scratch.slot(index), scratch.unit(index / wave),
       segment + 1 == segments.end);
    }
  }
}

}  // namespace

void paged_attention(const PagedAttentionArgs& args, ThreadPool& threads) {
  count_rows(CountedKernel::kPagedAttention, args.rows);
  const Extent extent = measure(args);
  const bool alone = threads.num_threads() == 1 || extent.work < kInlineWork;
  const bool few_pairs =
      int64_t{args.rows} * args.cache.kv_heads < AttentionScratch::units(threads.num_threads());
  if (!alone && few_pairs && extent.longest_segments >= kSplitSegments) {
    attend_by_segments(args, threads, extent.longest_segments);
  } else {
    attend_whole_rows(args, threads, alone);
  }
}

}  // namespace cpu
}  // namespace brigade::kernels
#endif  // HWY_ONCE
