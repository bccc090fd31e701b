#include "kernels/cuda/panel_product.h"

namespace brigade::kernels::cuda {

namespace {

PanelProduct with_alignment(PanelProduct product) {
  product.x_vectors = reinterpret_cast<uintptr_t>(product.x) % 16 == 0 && product.x_stride % 4 == 0;
  return product;
}

bool is_tiled(WeightFormat format, const PanelGroup& group) {
  return weight_layout(format) == WeightLayout::kPanels && group.count >= kFirstTiledCount;
}

bool has_enough_tiles(const PanelGroup& group) {
  const int64_t row_tiles = (group.count + kTileRows - 1) / kTileRows;
  const int64_t panel_tiles = (group.num_panels + kTilePanels - 1) / kTilePanels;
  return group.k < kLongK || row_tiles * panel_tiles >= kEnoughTiles ||
         group.count >= kAlwaysTiledCount;
}

cudaError_t launch_groups(cudaStream_t stream, const PanelProduct& product, WeightFormat format,
                          bool tiled, const PanelGroups& groups, int num_groups) {
  if (weight_layout(format) == WeightLayout::kRows) {
    return stream_rows(stream, format, groups, num_groups, product);
  }
  return (tiled ? tile_panels : stream_panels)(stream, format, groups, num_groups, product);
}

}  // namespace

PanelGroup panel_group(const PackedMatrix& matrix, int first, int count) {
  PanelGroup group;
  group.weights = matrix.data;
  group.first = first;
  group.count = count;
  group.k = static_cast<int>(matrix.k);
  group.num_panels = static_cast<int>(padded_outputs(matrix.outputs) / kPanelOutputs);
  group.units = static_cast<int>(matrix.outputs);
  return group;
}

cudaError_t launch_product(cudaStream_t stream, const PanelProduct& product, WeightFormat format,
                           const PanelGroup& group) {
  PanelGroups groups;
  groups.group[0] = group;
  const bool tiled = is_tiled(format, group) && has_enough_tiles(group);
  return launch_groups(stream, with_alignment(product), format, tiled, groups, 1);
}

PanelLauncher::PanelLauncher(cudaStream_t stream, const PanelProduct& product)
    : stream_(stream), product_(with_alignment(product)) {}

void PanelLauncher::add(WeightFormat format, const PanelGroup& group) {
  if (group.count <= 0) return;
  const bool tiled = is_tiled(format, group);
  Pending& set = pending(format, tiled);
  set.groups.group[set.count++] = group;
  if (set.count == kMaxPanelGroups) flush(format, tiled);
}

cudaError_t PanelLauncher::finish() {
  for (int f = 1; f <= kFormats; ++f) {
    flush(static_cast<WeightFormat>(f), false);
    flush(static_cast<WeightFormat>(f), true);
  }
  return error_;
}

void PanelLauncher::flush(WeightFormat format, bool tiled) {
  Pending& set = pending(format, tiled);
  if (set.count > 0 && error_ == cudaSuccess) {
    error_ = launch_groups(stream_, product_, format, tiled, set.groups, set.count);
  }
  set.count = 0;
}

}  // namespace brigade::kernels::cuda
