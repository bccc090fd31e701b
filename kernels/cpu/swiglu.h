// silu(gate) * up on vectors; silu(g) = g / (1 + exp(-g)) with our exp. Same bits on every
// instruction set. Pure functions over caller memory; any thread.
#pragma once

namespace brigade::kernels::cpu {

// out[i] = silu(gate[i]) * up[i] for i in [0, count), count a multiple of 16; all 64-byte aligned.
void swiglu(const float* gate, const float* up, int count, float* out);

}  // namespace brigade::kernels::cpu
