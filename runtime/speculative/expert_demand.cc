#include "runtime/speculative/expert_demand.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr double kWindowRows = 2000;  // rows after which a choice has faded to 1/e or less

}  // namespace

ExpertDemand::ExpertDemand(int layers, int experts, int max_rows)
    : max_rows_(max_rows),
      layers_(static_cast<size_t>(layers)),
      sum_(static_cast<size_t>(max_rows) + 1),
      expected_(sum_.size()),
      asleep_(static_cast<size_t>(experts)),
      share_(asleep_.size()),
      awake_(1) {
  CHECK(layers > 0 && experts > 0 && max_rows > 0);
  for (Layer& layer : layers_) {
    layer.seen.assign(asleep_.size(), 0);
    layer.window.assign(asleep_.size(), 0);
  }
}

bool ExpertDemand::take_layer(std::span<const int64_t> counts, int64_t rows,
                              std::span<const int32_t> holders) {
  CHECK(counts.size() == asleep_.size() && holders.size() == asleep_.size());
  Layer& layer = layers_[static_cast<size_t>(next_)];
  const auto fresh = static_cast<double>(rows - layer.seen_rows);
  const double keep = kWindowRows / (kWindowRows + fresh);
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    const auto chosen = static_cast<double>(counts[expert] - layer.seen[expert]);
    layer.window[expert] = layer.window[expert] * keep + chosen;
    layer.seen[expert] = counts[expert];
  }
  layer.window_rows = layer.window_rows * keep + fresh;
  layer.seen_rows = rows;
  add_expected(layer, holders);
  if (++next_ < static_cast<int>(layers_.size())) return false;
  next_ = 0;
  ++rounds_;
  for (size_t n = 0; n < sum_.size(); ++n) {
    expected_[n] = sum_[n] / static_cast<double>(layers_.size());
  }
  std::fill(sum_.begin(), sum_.end(), 0.0);
  return true;
}

// An expert stays asleep in n rows with probability (1 - share)^n.
void ExpertDemand::add_expected(const Layer& layer, std::span<const int32_t> holders) {
  const double rows = std::max(layer.window_rows, 1.0);
  int32_t most = 0;
  for (size_t expert = 0; expert < asleep_.size(); ++expert) {
    share_[expert] = std::clamp(layer.window[expert] / rows, 0.0, 1.0);
    asleep_[expert] = 1;
    most = std::max(most, holders[expert]);
  }
  awake_.resize(std::max(awake_.size(), static_cast<size_t>(most) + 1));
  for (int n = 1; n <= max_rows_; ++n) {
    std::fill(awake_.begin(), awake_.end(), 0.0);
    for (size_t expert = 0; expert < asleep_.size(); ++expert) {
      asleep_[expert] *= 1 - share_[expert];
      if (holders[expert] < 0) continue;
      awake_[static_cast<size_t>(holders[expert])] += 1 - asleep_[expert];
    }
    sum_[static_cast<size_t>(n)] += *std::max_element(awake_.begin(), awake_.end());
  }
}

}  // namespace brigade::runtime
