// Products of f32 rows with packed weights, the common part of matmul and expert_ffn.
//
// Panels: with the bits of the CPU kernels, per output one chain of fused multiply-adds per 256 k,
// block sums added in order. Two kernels with equal results: few rows stream the weights once for
// up to 8 rows (panel_stream.cu), many rows go through tiles in shared memory (panel_tiles.cu).
// Rows, in mode fast: row_stream.cu, for as many rows as a library would be slower for.
//
// Everything is enqueued on the stream with its arguments in the kernels' parameters: no memory is
// allocated, nothing is copied from host memory later, and calls can be captured in a graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels::cuda {

inline constexpr int kBlockK = 256;  // length of one chain; part of the numerics

// Rows [first, first + count) of the product meet one matrix.
struct PanelGroup {
  const void* weights = nullptr;
  int first = 0;
  int count = 0;
  int k = 0;
  int num_panels = 0;  // of a format of panels
  int units = 0;       // of a format of rows: outputs, or pairs of gate and up
};
// What one launch takes: with PanelProduct well below the 4 KiB of a kernel's parameters.
inline constexpr int kMaxPanelGroups = 64;
struct PanelGroups {
  PanelGroup group[kMaxPanelGroups];
};

// Where rows come from and where sums go. Row i reads x[row_index[i]] and writes to[out_index[i]];
// without an index, i.
//   swiglu: panels alternate gate and up; to: f32 [*, to_stride], silu(gate) * up, all 16 of a
//           panel.
//   else:   to[row][n] = (accumulate ? to[row][n] : nothing) + (sum + bias[n]), rounded to dtype,
//           n < outputs. Bias and accumulate: f32 only.
struct PanelProduct {
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* row_index = nullptr;
  void* to = nullptr;
  int64_t to_stride = 0;
  const int32_t* out_index = nullptr;
  const float* bias = nullptr;
  int64_t outputs = 0;
  DType dtype = DType::kF32;  // f32 or bf16
  bool swiglu = false;
  bool accumulate = false;
  bool x_vectors = false;  // rows of x are 16-byte aligned; set by the launches below
};

// From this many rows of a group on the tiles are taken: below, each further 8 rows of the
// streaming kernel read the weights again, mostly from the L2 cache. One matrix alone whose K is
// long keeps streaming while its tiles are too few to occupy a large GPU, because each tile walks
// all of K; up to a number of rows from which the streaming kernel would wait for the L2 cache even
// so. Reasoned, not yet measured on hardware.
inline constexpr int kFirstTiledCount = 33;
inline constexpr int kLongK = 1024;
inline constexpr int64_t kEnoughTiles = 96;
inline constexpr int kAlwaysTiledCount = 257;
inline constexpr int kTileRows = 64, kTilePanels = 4;  // of panel_tiles.cu

// Each enqueues one kernel for `num_groups` groups, all of `format`, all with rows.
cudaError_t stream_panels(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                          int num_groups, const PanelProduct& product);
cudaError_t tile_panels(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                        int num_groups, const PanelProduct& product);
cudaError_t stream_rows(cudaStream_t stream, WeightFormat format, const PanelGroups& groups,
                        int num_groups, const PanelProduct& product);

// Rows [first, first + count) of the product's list meet `matrix`; for gate and up, units is set by
// the caller.
PanelGroup panel_group(const PackedMatrix& matrix, int first, int count);

// One group.
cudaError_t launch_product(cudaStream_t stream, const PanelProduct& product, WeightFormat format,
                           const PanelGroup& group);

// Collects groups and enqueues them, sorted by format and kernel, a full set at a time: add() for
// each group, then finish(). Groups without rows are left out.
class PanelLauncher {
 public:
  PanelLauncher(cudaStream_t stream, const PanelProduct& product);
  void add(WeightFormat format, const PanelGroup& group);
  cudaError_t finish();

 private:
  static constexpr int kFormats = 6;
  struct Pending {
    PanelGroups groups;
    int count = 0;
  };
  void flush(WeightFormat format, bool tiled);
  Pending& pending(WeightFormat format, bool tiled) {
    return pending_[static_cast<int>(format) - 1][tiled];
  }

  const cudaStream_t stream_;
  PanelProduct product_;
  Pending pending_[kFormats][2];  // by format, from 1 on
  cudaError_t error_ = cudaSuccess;
};

}  // namespace brigade::kernels::cuda
