// Register tiles for f16 weights, compiled once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_tiles_f16.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/gemm_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::cpu {
namespace HWY_NAMESPACE {

const TileSet* f16_tile_set() {
  static const TileSet set = make_tile_set<F16Format>();
  return &set;
}

}  // namespace HWY_NAMESPACE
}  // namespace brigade::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels::cpu {

HWY_EXPORT(f16_tile_set);
const TileSet& f16_tiles() { return *HWY_DYNAMIC_DISPATCH(f16_tile_set)(); }

}  // namespace brigade::kernels::cpu
#endif
