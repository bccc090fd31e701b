#include "kernels/cuda/panel_product.h"

#include <initializer_list>

namespace brigade::kernels::cuda {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32Panels16, WeightFormat::kBF16PairPanels16,
                                     WeightFormat::kF16Panels16};

int index_of(WeightFormat format) {
  int index = 0;
  while (kFormats[index] != format) ++index;
  return index;
}

}  // namespace

PanelLauncher::PanelLauncher(cudaStream_t stream, const PanelProduct& product)
    : stream_(stream), product_(product) {
  product_.x_vectors =
      reinterpret_cast<uintptr_t>(product.x) % 16 == 0 && product.x_stride % 4 == 0;
}

void PanelLauncher::add(WeightFormat format, const PanelGroup& group) {
  if (group.count <= 0) return;
  const int f = index_of(format);
  const bool tiled = group.count >= kFirstTiledCount;
  Pending& pending = pending_[f][tiled];
  pending.groups.group[pending.count++] = group;
  if (pending.count == kMaxPanelGroups) flush(f, tiled);
}

cudaError_t PanelLauncher::finish() {
  for (int f = 0; f < kFormats; ++f) {
    for (const bool tiled : {false, true}) flush(f, tiled);
  }
  return error_;
}

void PanelLauncher::flush(int format, bool tiled) {
  Pending& pending = pending_[format][tiled];
  if (pending.count > 0 && error_ == cudaSuccess) {
    const auto launch = tiled ? tile_panels : stream_panels;
    error_ = launch(stream_, brigade::kernels::cuda::kFormats[format], pending.groups,
                    pending.count, product_);
  }
  pending.count = 0;
}

}  // namespace brigade::kernels::cuda
