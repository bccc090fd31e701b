// Register tiles for bf16 weights, compiled once per instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gemm_tiles_bf16.cc"
#include "hwy/foreach_target.h"
#include "kernels/cpu/gemm_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::cpu {
namespace HWY_NAMESPACE {

const TileSet* bf16_tile_set() {
  static const TileSet set = make_tile_set<BF16Format>();
  return &set;
}

}  // namespace HWY_NAMESPACE
}  // namespace brigade::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels::cpu {

HWY_EXPORT(bf16_tile_set);
const TileSet& bf16_tiles() { return *HWY_DYNAMIC_DISPATCH(bf16_tile_set)(); }

}  // namespace brigade::kernels::cpu
#endif
