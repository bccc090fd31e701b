#include "kernels/cpu/gemm_tiles.h"

#include "kernels/core/check.h"

namespace brigade::kernels::cpu {

const TileSet& tile_set(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32Panels16:
      return f32_tiles();
    case WeightFormat::kBF16PairPanels16:
      return bf16_tiles();
    case WeightFormat::kF16Panels16:
      return f16_tiles();
    default:
      break;
  }
  check_failed("a format of panels", __FILE__, __LINE__);
}

}  // namespace brigade::kernels::cpu
