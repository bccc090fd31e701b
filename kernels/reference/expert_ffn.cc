#include "kernels/reference/expert_ffn.h"

#include <cmath>

#include "kernels/ops/math.h"

namespace brigade::kernels::reference {

std::vector<double> expert_ffn_row(const float* x, const RowMajorWeights& gate,
                                   const RowMajorWeights& up, const RowMajorWeights& down) {
  const std::vector<double> g = exact_matmul(x, 1, gate);
  const std::vector<double> u = exact_matmul(x, 1, up);
  std::vector<double> y(down.outputs, 0.0);
  for (int64_t i = 0; i < gate.outputs; ++i) {
    const double hidden = g[i] / (1.0 + std::exp(-g[i])) * u[i];
    for (int64_t n = 0; n < down.outputs; ++n) y[n] += hidden * down.at(n, i);
  }
  return y;
}

std::vector<float> canonical_expert_ffn_row(const float* x, const RowMajorWeights& gate,
                                            const RowMajorWeights& up,
                                            const RowMajorWeights& down) {
  const std::vector<float> g = canonical_matmul(x, 1, gate);
  const std::vector<float> u = canonical_matmul(x, 1, up);
  std::vector<float> hidden(gate.outputs);
  for (int64_t i = 0; i < gate.outputs; ++i) hidden[i] = g[i] / (1.0f + exp_f32(-g[i])) * u[i];
  return canonical_matmul(hidden.data(), 1, down);
}

}  // namespace brigade::kernels::reference
