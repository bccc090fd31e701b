#include "runtime/model/rope_frequencies.h"

#include "kernels/ops/math.h"

namespace brigade::runtime {
namespace {

constexpr double kPi = 3.14159265358979323846;

}  // namespace

std::vector<double> inverse_frequencies(const RopeSpec& rope) {
  const int half = rope.rotary_dim / 2;
  const double log_theta = kernels::log_f64(rope.theta);
  std::vector<double> frequencies(half);
  for (int i = 0; i < half; ++i) {
    const double frequency = kernels::exp_f64(-log_theta * (2.0 * i) / rope.rotary_dim);
    frequencies[i] = frequency;
    if (rope.factor == 1) continue;
    const double wave_length = 2 * kPi / frequency;
    const double context = rope.original_max_positions;
    if (wave_length < context / rope.high_freq_factor) continue;
    const double low = rope.low_freq_factor, high = rope.high_freq_factor;
    const double smooth =
        wave_length > context / low ? 0 : (context / wave_length - low) / (high - low);
    frequencies[i] = (1 - smooth) * frequency / rope.factor + smooth * frequency;
  }
  return frequencies;
}

}  // namespace brigade::runtime
