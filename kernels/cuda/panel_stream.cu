// Few rows: each weight is read once for up to 8 rows, as a stream of 16-byte loads. A quad of four
// threads owns one panel of 16 outputs in one block of 256 k; a thread runs the chains of four
// outputs for all rows. The quads of a thread block take several blocks of the same panels at a
// time; their sums meet in shared memory and are added in the order of k. So one row already has
// outputs / 4 * K / 256 threads, and how panels and blocks are dealt out cannot show in a sum.
//
// Rows of x are read through the L1 cache: few KiB that all thread blocks of a multiprocessor
// share.
#include <algorithm>

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/panel_formats.cuh"
#include "kernels/cuda/panel_output.cuh"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kMaxThreads = 128;
constexpr int kMaxQuads = kMaxThreads / 4;
constexpr int kMaxBlockPanels = 8;  // panels of one thread block; bounds its totals
// Thread blocks take more panels, and read x less often, as long as this many are left: several for
// each of some 130 multiprocessors.
constexpr int64_t kEnoughThreadBlocks = 1024;

// sums[r][o] = fma(a, w[o], sums[r][o]).
__device__ __forceinline__ void add_k(float a, const Weights4& weights, float (&sums)[4]) {
#pragma unroll
  for (int o = 0; o < 4; ++o) sums[o] = __fmaf_rn(a, weights.w[o], sums[o]);
}

// Four k for all rows: the 16-byte loads of x.
template <class Format, int kRows>
__device__ __forceinline__ void add_four(const typename Format::Pair (&pairs)[2],
                                         const float* const (&x)[kRows], int k,
                                         float (&sums)[kRows][4]) {
  const Weights4 w[4] = {Format::even(pairs[0]), Format::odd(pairs[0]), Format::even(pairs[1]),
                         Format::odd(pairs[1])};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 a = *reinterpret_cast<const float4*>(x[r] + k);
    add_k(a.x, w[0], sums[r]);
    add_k(a.y, w[1], sums[r]);
    add_k(a.z, w[2], sums[r]);
    add_k(a.w, w[3], sums[r]);
  }
}

// The chains of one block of `count` k. The weights of a whole step are on their way: what has been
// used is asked for again a step further. A block takes as many steps as it waits for memory, one
// after the other, so a step is as long as registers allow: 256 bytes a thread for one row, 128 for
// four, 64 for eight.
template <class Format, int kRows>
__device__ __forceinline__ void add_block(const uint8_t* weights, const float* const (&x)[kRows],
                                          int count, bool x_vectors, float (&sums)[kRows][4]) {
  constexpr int kFours = Format::kPairsPerStep / 2 * (kRows == 1 ? 4 : kRows <= 4 ? 2 : 1);
  constexpr int kStep = 4 * kFours;
  using Pair = typename Format::Pair;
  const int in_fours = x_vectors ? count / 4 * 4 : 0;
  Pair next[kFours][2];
  const auto load_four = [&](int f, int k) {
    next[f][0] = Format::load(weights + (k + 4 * f) * Format::kBytesPerK);
    next[f][1] = Format::load(weights + (k + 4 * f + 2) * Format::kBytesPerK);
  };
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    if (4 * f < in_fours) load_four(f, 0);
  }
#pragma unroll 1
  for (int k = 0; k < in_fours; k += kStep) {
#pragma unroll
    for (int f = 0; f < kFours; ++f) {
      if (k + 4 * f < in_fours) add_four<Format, kRows>(next[f], x, k + 4 * f, sums);
      if (k + kStep + 4 * f < in_fours) load_four(f, k + kStep);
    }
  }
#pragma unroll 1
  for (int k = in_fours; k < count; k += 2) {
    const uint8_t* const at = weights + k * Format::kBytesPerK;
    const bool last = k + 1 == count;
    const Pair pair = last ? Format::load_last(at) : Format::load(at);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      add_k(x[r][k], Format::even(pair), sums[r]);
      if (!last) add_k(x[r][k + 1], Format::odd(pair), sums[r]);
    }
  }
}

// What a thread block works on.
struct BlockWork {
  int first_panel;
  int panels;       // really there
  int first_row;    // of the group
  int rows;         // really there
  int panel_slots;  // quads side by side on the same k, a power of two
  int k_slots;      // blocks of k at a time
};

// Sums of the k_slots blocks from k on join the totals in order. Each total has one thread.
template <int kRows>
__device__ void join_blocks(const BlockWork& work, int k, int k_end, const float* partial,
                            float* totals) {
  const int there = min(work.k_slots, (k_end - k + kBlockK - 1) / kBlockK);
  for (int i = threadIdx.x; i < kRows * work.panels * kPanelOutputs; i += blockDim.x) {
    const int output = i % kPanelOutputs;
    const int panel = i / kPanelOutputs % work.panels;
    const int row = i / kPanelOutputs / work.panels;
    const float* const sums = partial + (row * kMaxQuads + panel) * kPanelOutputs + output;
    const int stride = work.panel_slots * kPanelOutputs;
    float total = k == 0 ? sums[0] : __fadd_rn(totals[i], sums[0]);
    for (int s = 1; s < there; ++s) total = __fadd_rn(total, sums[s * stride]);
    totals[i] = total;
  }
}

// totals: [rows][panels][16].
__device__ void store_totals(const PanelProduct& product, const PanelGroup& group,
                             const BlockWork& work, const float* totals) {
  const int units = product.swiglu ? work.panels / 2 : work.panels;
  for (int i = threadIdx.x; i < work.rows * units * kPanelOutputs; i += blockDim.x) {
    const int output = i % kPanelOutputs;
    const int unit = i / kPanelOutputs % units;
    const int row = i / kPanelOutputs / units;
    const int64_t to = target_row(product, group.first + work.first_row + row);
    const float* const of_row = totals + row * work.panels * kPanelOutputs + output;
    if (product.swiglu) {
      const int64_t column = int64_t{work.first_panel / 2 + unit} * kPanelOutputs + output;
      store_hidden(product, to, column, of_row[2 * unit * kPanelOutputs],
                   of_row[(2 * unit + 1) * kPanelOutputs]);
    } else {
      const int64_t column = int64_t{work.first_panel + unit} * kPanelOutputs + output;
      store_sum(product, to, column, of_row[unit * kPanelOutputs]);
    }
  }
}

// Grid: x = panels / panel_slots times chunks of kRows rows, chunks fastest, so that those who read
// the same weights run together; y = groups.
template <class Format, int kRows>
__global__ void __launch_bounds__(kMaxThreads, 3)
    stream_kernel(const __grid_constant__ PanelGroups groups,
                  const __grid_constant__ PanelProduct product, int panel_slots, int row_chunks) {
  GPU_SHARED(float4, partial, kRows * kMaxQuads * kPanelOutputs / 4);  // [row][quad][16]
  GPU_SHARED(float, totals, kRows* kMaxBlockPanels* kPanelOutputs);
  const PanelGroup& group = groups.group[blockIdx.y];
  BlockWork work;
  work.first_panel = static_cast<int>(blockIdx.x / row_chunks) * panel_slots;
  work.first_row = static_cast<int>(blockIdx.x % row_chunks) * kRows;
  if (work.first_panel >= group.num_panels || work.first_row >= group.count) return;
  work.panels = min(panel_slots, group.num_panels - work.first_panel);
  work.rows = min(kRows, group.count - work.first_row);
  work.panel_slots = panel_slots;
  work.k_slots = static_cast<int>(blockDim.x) / 4 / panel_slots;

  const int quad = static_cast<int>(threadIdx.x) / 4;
  const int quarter = static_cast<int>(threadIdx.x) % 4;
  const int panel = quad % panel_slots;
  int k = quad / panel_slots * kBlockK;
  const uint8_t* weights = static_cast<const uint8_t*>(group.weights) +
                           (work.first_panel + panel) * Format::panel_bytes(group.k) +
                           int64_t{k} * Format::kBytesPerK + quarter * Format::kQuarterBytes;
  const float* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // Rows past the last repeat it; nobody stores them.
    x[r] = source_row(product, group.first + work.first_row + min(r, work.rows - 1)) + k;
  }
  const int step = work.k_slots * kBlockK;
#pragma unroll 1
  for (int first = 0; first < group.k; first += step) {
    if (k < group.k && panel < work.panels) {
      float sums[kRows][4] = {};
      add_block<Format, kRows>(weights, x, min(kBlockK, group.k - k), product.x_vectors, sums);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        partial[(r * kMaxQuads + quad) * (kPanelOutputs / 4) + quarter] =
            float4{sums[r][0], sums[r][1], sums[r][2], sums[r][3]};
      }
    }
    k += step;
    weights += int64_t{step} * Format::kBytesPerK;
#pragma unroll
    for (int r = 0; r < kRows; ++r) x[r] += step;
    __syncthreads();
    join_blocks<kRows>(work, first, group.k, reinterpret_cast<const float*>(partial), totals);
    __syncthreads();
  }
  store_totals(product, group, work, totals);
}

struct StreamPlan {
  dim3 grid;
  dim3 threads;
  int panel_slots;
  int row_chunks;
};

StreamPlan plan_stream(const PanelGroups& groups, int num_groups, bool pairs, int rows) {
  int panels = 0, blocks = 0, count = 0;
  for (int g = 0; g < num_groups; ++g) {
    const PanelGroup& group = groups.group[g];
    panels = std::max(panels, group.num_panels);
    blocks = std::max(blocks, static_cast<int>(ceil_div(group.k, kBlockK)));
    count = std::max(count, group.count);
  }
  StreamPlan plan;
  plan.row_chunks = static_cast<int>(ceil_div(count, rows));
  int slots = pairs ? 2 : 1;
  const auto more = [&] {
    if (slots * blocks < kWarp / 4) return true;  // part of a warp would have nothing to do
    const int64_t thread_blocks = int64_t{panels} / slots * num_groups * plan.row_chunks;
    return (slots < 4 || slots * blocks < kMaxQuads) && thread_blocks >= 2 * kEnoughThreadBlocks;
  };
  while (slots < kMaxBlockPanels && more()) slots *= 2;
  const int quads = std::min(kMaxQuads, static_cast<int>(ceil_div(slots * blocks, 8)) * 8);
  plan.panel_slots = slots;
  plan.threads = dim3(static_cast<unsigned>(quads * 4));
  plan.grid = dim3(static_cast<unsigned>(ceil_div(panels, slots) * plan.row_chunks),
                   static_cast<unsigned>(num_groups));
  return plan;
}

template <class Format, int kRows>
cudaError_t launch_stream(cudaStream_t stream, const PanelGroups& groups, int num_groups,
                          const PanelProduct& product) {
  const StreamPlan plan = plan_stream(groups, num_groups, product.swiglu, kRows);
  return launch(stream_kernel<Format, kRows>, plan.grid, plan.threads, 0, stream, groups, product,
                plan.panel_slots, plan.row_chunks);
}

template <class Format>
cudaError_t launch_rows(cudaStream_t stream, const PanelGroups& groups, int num_groups,
                        const PanelProduct& product) {
  int count = 0;
  for (int g = 0; g < num_groups; ++g) count = std::max(count, groups.group[g].count);
  if (count == 1) return launch_stream<Format, 1>(stream, groups, num_groups, product);
  if (count <= 4) return launch_stream<Format, 4>(stream, groups, num_groups, product);
  return launch_stream<Format, 8>(stream, groups, num_groups, product);
}

}  // namespace

cudaError_t stream_panels(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                          int num_groups, const PanelProduct& product) {
  return with_panels(format, [&](auto reader) {
    return launch_rows<decltype(reader)>(stream, groups, num_groups, product);
  });
}

}  // namespace brigade::kernels::cuda
