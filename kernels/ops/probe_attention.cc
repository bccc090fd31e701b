// The numerics probe's rope, KV write and attention, in every dtype of the cache.
#include "absl/strings/str_cat.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/math.h"
#include "kernels/ops/probe_bench.h"

namespace brigade::kernels {
namespace {

constexpr int kHeads = 6, kKvHeads = 2, kHeadDim = 40, kBlockSize = 8;
constexpr int kPositions = 150;  // more than one segment of attention
constexpr int kBlocks = (kPositions + kBlockSize - 1) / kBlockSize;

KvLayerView view_of(const Buffer& cache, DType dtype) {
  KvLayerView view{.data = cache.data(),
                   .dtype = dtype,
                   .num_blocks = kBlocks,
                   .block_size = kBlockSize,
                   .kv_heads = kKvHeads,
                   .head_dim = kHeadDim};
  view.block_stride_bytes = static_cast<int64_t>(view.layer_bytes());
  return view;
}

absl::Status probe_rope(ProbeBench& bench, DType dtype, RopePairing pairing) {
  constexpr int kRows = 6, kRotary = 36, kHalf = kRotary / 2;
  std::vector<double> frequencies;
  for (int i = 0; i < kHalf; ++i) frequencies.push_back(1.0 / (1 + 3 * i));
  std::vector<float> cosines(size_t{kPositions} * kHalf), sines(cosines.size());
  fill_rope_tables(frequencies.data(), kHalf, kPositions, 1.0, cosines.data(), sines.data());
  const std::vector<int32_t> positions = {0, 1, 37, 128, 149, 90};
  const std::vector<int64_t> slots = {9, 1, -1, 88, 47, 20};
  ASSIGN_OR_RETURN(const Buffer cos_at, bench.upload(cosines));
  ASSIGN_OR_RETURN(const Buffer sin_at, bench.upload(sines));
  ASSIGN_OR_RETURN(const Buffer positions_at, bench.upload(positions));
  ASSIGN_OR_RETURN(const Buffer slots_at, bench.upload(slots));
  ASSIGN_OR_RETURN(const Buffer q, bench.random(DType::kF32, kRows * kHeads * kHeadDim));
  ASSIGN_OR_RETURN(const Buffer k, bench.random(DType::kF32, kRows * kKvHeads * kHeadDim));
  ASSIGN_OR_RETURN(const Buffer v, bench.random(DType::kF32, kRows * kKvHeads * kHeadDim));
  const std::vector<uint8_t> empty(view_of(Buffer(), dtype).layer_bytes() * kBlocks, 0);
  ASSIGN_OR_RETURN(const Buffer cache, bench.upload(empty));
  RETURN_IF_ERROR(rope_kv_write(bench.stream(), {.q = q.as<float>(),
                                                 .k = k.as<float>(),
                                                 .v = v.as<float>(),
                                                 .positions = positions_at.as<int32_t>(),
                                                 .slots = slots_at.as<int64_t>(),
                                                 .cos_table = cos_at.as<float>(),
                                                 .sin_table = sin_at.as<float>(),
                                                 .cache = view_of(cache, dtype),
                                                 .q_stride = kHeads * kHeadDim,
                                                 .k_stride = kKvHeads * kHeadDim,
                                                 .v_stride = kKvHeads * kHeadDim,
                                                 .rows = kRows,
                                                 .heads = kHeads,
                                                 .rotary_dim = kRotary,
                                                 .max_positions = kPositions,
                                                 .pairing = pairing}));
  const char* pairs = pairing == RopePairing::kSplitHalves ? " halves" : " interleaved";
  RETURN_IF_ERROR(bench.keep(absl::StrCat("rope q ", dtype_name(dtype), pairs), q));
  return bench.keep(absl::StrCat("rope KV ", dtype_name(dtype), pairs), cache);
}

absl::Status probe_rows(ProbeBench& bench, const char* name, DType dtype, int window,
                        const std::vector<int32_t>& positions) {
  std::vector<int32_t> table;
  for (int i = 0; i < kBlocks; ++i) table.push_back(i * 7 % kBlocks);  // 7 and 19 share no divisor
  const std::vector<int32_t> sequences(positions.size(), 0);
  const auto rows = static_cast<int>(positions.size());
  constexpr int kWidth = kHeads * kHeadDim;
  const size_t elements =
      view_of(Buffer(), dtype).layer_bytes() / dtype_bytes(dtype) * size_t{kBlocks};
  ASSIGN_OR_RETURN(const Buffer cache, bench.random(dtype, elements));
  ASSIGN_OR_RETURN(const Buffer table_at, bench.upload(table));
  ASSIGN_OR_RETURN(const Buffer sequences_at, bench.upload(sequences));
  ASSIGN_OR_RETURN(const Buffer positions_at, bench.upload(positions));
  ASSIGN_OR_RETURN(const Buffer q, bench.random(DType::kF32, size_t(rows) * kWidth));
  ASSIGN_OR_RETURN(const Buffer out, bench.allocate(q.bytes()));
  const size_t scratch_bytes = attention_scratch_bytes(bench.device(), rows, kHeads, kHeadDim);
  ASSIGN_OR_RETURN(const Buffer scratch, bench.allocate(scratch_bytes));
  RETURN_IF_ERROR(paged_attention(bench.stream(), {.q = q.as<float>(),
                                                   .cache = view_of(cache, dtype),
                                                   .block_tables = table_at.as<int32_t>(),
                                                   .row_sequence = sequences_at.as<int32_t>(),
                                                   .row_position = positions_at.as<int32_t>(),
                                                   .out = out.as<float>(),
                                                   .q_stride = kWidth,
                                                   .out_stride = kWidth,
                                                   .rows = rows,
                                                   .heads = kHeads,
                                                   .max_blocks = kBlocks,
                                                   .sequences = 1,
                                                   .window = window,
                                                   .scale = 0.15625f,
                                                   .scratch = scratch.data(),
                                                   .scratch_bytes = scratch_bytes}));
  return bench.keep(absl::StrCat("attention ", dtype_name(dtype), name), out);
}

}  // namespace

// Few rows; with a window; so many that a GPU takes several in a tile, or to its tensor cores.
absl::Status probe_attention(ProbeBench& bench) {
  const std::vector<int32_t> few = {0, 17, 127, 128, 149};
  std::vector<int32_t> many;
  for (int position = 126; position < kPositions; ++position) many.push_back(position);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const RopePairing pairing : {RopePairing::kSplitHalves, RopePairing::kInterleaved}) {
      RETURN_IF_ERROR(probe_rope(bench, dtype, pairing));
    }
    RETURN_IF_ERROR(probe_rows(bench, " window 0", dtype, 0, few));
    RETURN_IF_ERROR(probe_rows(bench, " window 33", dtype, 33, few));
    RETURN_IF_ERROR(probe_rows(bench, " many rows", dtype, 0, many));
  }
  return absl::OkStatus();
}

}  // namespace brigade::kernels
