// The truth for one expert, down(silu(gate(x)) * up(x)), in double precision from plain row-major
// weights; tests only.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference/canonical_matmul.h"

namespace brigade::kernels::reference {

// gate, up: [ffn, hidden]; down: [hidden, ffn]. x: [hidden]; result: [hidden].
std::vector<double> expert_ffn_row(const float* x, const RowMajorWeights& gate,
                                   const RowMajorWeights& up, const RowMajorWeights& down);

// The kernels' own order of operations, scalar: equal bits are expected before the wire dtype.
std::vector<float> canonical_expert_ffn_row(const float* x, const RowMajorWeights& gate,
                                            const RowMajorWeights& up, const RowMajorWeights& down);

}  // namespace brigade::kernels::reference
