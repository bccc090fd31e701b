// Many rows: tiles of 64 rows and 64 outputs through shared memory, 16 k at a time. Weights are
// widened once on their way into shared memory. A thread owns 4 outputs of 8 rows: two reads of x,
// of which a warp has two different ones, and one of weights feed 32 fused multiply-adds. The
// chains are those of panel_stream.cu: a sum per block of 256 k and a running total.
#include <algorithm>

#include "kernels/cuda/gpu.cuh"
#include "kernels/cuda/panel_formats.cuh"
#include "kernels/cuda/panel_output.cuh"
#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {
namespace {

constexpr int kTileK = 16;
constexpr int kThreads = 128;
constexpr int kThreadRows = 8;
constexpr int kColumns = kTilePanels * kPanelOutputs / 4;  // threads side by side
// In float4, with padding that spreads the stores of a tile over the banks.
constexpr int kXPitch = kTileRows / 4 + 1;
constexpr int kWeightPitch = kColumns + 2;
static_assert(kTileRows * kTileK == kThreads * 4 * 2);
static_assert(kColumns * kTileK / 2 == kThreads);
static_assert(kColumns * kTileRows / kThreadRows == kThreads);
static_assert(kBlockK % kTileK == 0);

// Four k of one row of x, zero past K.
__device__ __forceinline__ float4 load_x(const float* row, int k, int k_end, bool vectors) {
  if (vectors && k + 4 <= k_end) return *reinterpret_cast<const float4*>(row + k);
  float4 x{0, 0, 0, 0};
  if (k < k_end) x.x = row[k];
  if (k + 1 < k_end) x.y = row[k + 1];
  if (k + 2 < k_end) x.z = row[k + 2];
  if (k + 3 < k_end) x.w = row[k + 3];
  return x;
}

// One thread's part of moving tiles from memory to shared memory: four k of two rows, and two k of
// a quarter of one panel.
template <class Format>
struct TileLoader {
  const float* rows[2];
  const uint8_t* panel;  // null: past the matrix
  int k_end;
  bool x_vectors;
  float4 x[2];
  typename Format::Pair weights;

  // Places in a tile.
  static __device__ __forceinline__ int x_row(int i) { return threadIdx.x / 4 + i * kTileRows / 2; }
  static __device__ __forceinline__ int x_k() { return threadIdx.x % 4 * 4; }
  static __device__ __forceinline__ int k_pair() { return threadIdx.x / 4 % (kTileK / 2); }
  static __device__ __forceinline__ int panel_of_tile() { return threadIdx.x / (2 * kTileK); }

  __device__ __forceinline__ void fetch(int k0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) x[i] = load_x(rows[i], k0 + x_k(), k_end, x_vectors);
    const int k = k0 + 2 * k_pair();
    if (panel == nullptr || k >= k_end) return;
    const uint8_t* const at = panel + int64_t{k} * Format::kBytesPerK;
    weights = k + 1 < k_end ? Format::load(at) : Format::load_last(at);
  }
  // Weights past K or past the matrix are whatever they were: no sum that is kept reads them.
  __device__ __forceinline__ void store(float4* x_tile, float4* weight_tile) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* const to = reinterpret_cast<float*>(x_tile) + x_k() * kXPitch * 4 + x_row(i);
      to[0] = x[i].x;
      to[kXPitch * 4] = x[i].y;
      to[kXPitch * 8] = x[i].z;
      to[kXPitch * 12] = x[i].w;
    }
    const Weights4 even = Format::even(weights);
    const Weights4 odd = Format::odd(weights);
    float4* const to =
        weight_tile + 2 * k_pair() * kWeightPitch + panel_of_tile() * 4 + threadIdx.x % 4;
    to[0] = float4{even.w[0], even.w[1], even.w[2], even.w[3]};
    to[kWeightPitch] = float4{odd.w[0], odd.w[1], odd.w[2], odd.w[3]};
  }
};

struct Sums {
  float v[kThreadRows][4];
};

__device__ __forceinline__ void add_k(const float4& low, const float4& high, const float4& w,
                                      Sums& sums) {
  const float a[kThreadRows] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    sums.v[r][0] = __fmaf_rn(a[r], w.x, sums.v[r][0]);
    sums.v[r][1] = __fmaf_rn(a[r], w.y, sums.v[r][1]);
    sums.v[r][2] = __fmaf_rn(a[r], w.z, sums.v[r][2]);
    sums.v[r][3] = __fmaf_rn(a[r], w.w, sums.v[r][3]);
  }
}

// `x`: the thread's rows at the tile's first k; `weights`: the thread's outputs.
__device__ __forceinline__ void add_tile(const float4* x, const float4* weights, int count,
                                         Sums& sums) {
  if (count == kTileK) {
#pragma unroll
    for (int k = 0; k < kTileK; ++k) {
      add_k(x[k * kXPitch], x[k * kXPitch + 1], weights[k * kWeightPitch], sums);
    }
  } else {
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      add_k(x[k * kXPitch], x[k * kXPitch + 1], weights[k * kWeightPitch], sums);
    }
  }
}

// The end of a block of k: its sums join the totals and start anew.
__device__ __forceinline__ void join(bool first, Sums& sums, Sums& totals) {
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      totals.v[r][o] = first ? sums.v[r][o] : __fadd_rn(totals.v[r][o], sums.v[r][o]);
      sums.v[r][o] = 0;
    }
  }
}

// Four outputs of each of the thread's rows from `column` of the matrix on. With swiglu, the thread
// with the same outputs of the up panel is four lanes further.
__device__ __forceinline__ void store_totals(const PanelProduct& product, const PanelGroup& group,
                                             int first_row, int column, const Sums& totals) {
  const int panel = column / kPanelOutputs;
  const int output = column % kPanelOutputs;
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    float up[4];
    if (product.swiglu) {
#pragma unroll
      for (int o = 0; o < 4; ++o) up[o] = __shfl_down_sync(0xFFFFFFFFu, totals.v[r][o], 4);
    }
    if (first_row + r >= group.count || panel >= group.num_panels) continue;
    const int64_t to = target_row(product, group.first + first_row + r);
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      if (!product.swiglu) {
        store_sum(product, to, column + o, totals.v[r][o]);
      } else if (panel % 2 == 0) {
        store_hidden(product, to, panel / 2 * kPanelOutputs + output + o, totals.v[r][o], up[o]);
      }
    }
  }
}

// Grid: x = tiles of rows, which share weights and run together; y = tiles of panels; z = groups.
template <class Format>
__global__ void __launch_bounds__(kThreads, 3)
    tile_kernel(const __grid_constant__ PanelGroups groups,
                const __grid_constant__ PanelProduct product) {
  GPU_SHARED(float4, x_tiles, 2 * kTileK * kXPitch);
  GPU_SHARED(float4, weight_tiles, 2 * kTileK * kWeightPitch);
  const PanelGroup& group = groups.group[blockIdx.z];
  const int tile_row = static_cast<int>(blockIdx.x) * kTileRows;
  const int tile_panel = static_cast<int>(blockIdx.y) * kTilePanels;
  if (tile_row >= group.count || tile_panel >= group.num_panels) return;

  using Loader = TileLoader<Format>;
  Loader loader{};
  loader.k_end = group.k;
  loader.x_vectors = product.x_vectors;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Rows past the last repeat it; nobody stores them.
    const int row = min(tile_row + Loader::x_row(i), group.count - 1);
    loader.rows[i] = source_row(product, group.first + row);
  }
  const int panel = tile_panel + Loader::panel_of_tile();
  if (panel < group.num_panels) {
    loader.panel = static_cast<const uint8_t*>(group.weights) +
                   panel * Format::panel_bytes(group.k) + threadIdx.x % 4 * Format::kQuarterBytes;
  }

  const int column = threadIdx.x % kColumns;
  const int row = threadIdx.x / kColumns * kThreadRows;
  const int warp_row = threadIdx.x / kWarp * (kWarp / kColumns) * kThreadRows;
  const bool warp_has_rows = tile_row + warp_row < group.count;
  Sums sums{}, totals{};
  loader.fetch(0);
  int buffer = 0;
#pragma unroll 1
  for (int k0 = 0; k0 < group.k; k0 += kTileK, buffer ^= 1) {
    float4* const x_tile = x_tiles + buffer * kTileK * kXPitch;
    float4* const weight_tile = weight_tiles + buffer * kTileK * kWeightPitch;
    loader.store(x_tile, weight_tile);
    // One barrier a tile: who passes it has done with the other buffer.
    __syncthreads();
    const int next = k0 + kTileK;
    if (next < group.k) loader.fetch(next);
    if (!warp_has_rows) continue;
    add_tile(x_tile + row / 4, weight_tile + column, min(kTileK, group.k - k0), sums);
    if (next % kBlockK == 0 || next >= group.k) join(k0 < kBlockK, sums, totals);
  }
  if (!warp_has_rows) return;
  store_totals(product, group, tile_row + row, tile_panel * kPanelOutputs + column * 4, totals);
}

template <class Format>
cudaError_t launch_tiles(cudaStream_t stream, const PanelGroups& groups, int num_groups,
                         const PanelProduct& product) {
  int panels = 0, count = 0;
  for (int g = 0; g < num_groups; ++g) {
    panels = std::max(panels, groups.group[g].num_panels);
    count = std::max(count, groups.group[g].count);
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(count, kTileRows)),
                  static_cast<unsigned>(ceil_div(panels, kTilePanels)),
                  static_cast<unsigned>(num_groups));
  return launch(tile_kernel<Format>, grid, dim3(kThreads), 0, stream, groups, product);
}

}  // namespace

cudaError_t tile_panels(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                        int num_groups, const PanelProduct& product) {
  return with_panels(format, [&](auto reader) {
    return launch_tiles<decltype(reader)>(stream, groups, num_groups, product);
  });
}

}  // namespace brigade::kernels::cuda
