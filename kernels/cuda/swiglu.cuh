// silu(gate) * up with the bits of kernels/cpu/swiglu.
#pragma once

#include "kernels/cuda/math.cuh"

namespace brigade::kernels::cuda {

// silu(g) = g / (1 + exp(-g)).
__device__ __forceinline__ float swiglu(float gate, float up) {
  const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, exp_f32(-gate)));
  return __fmul_rn(silu, up);
}

}  // namespace brigade::kernels::cuda
