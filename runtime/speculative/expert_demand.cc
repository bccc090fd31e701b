#include "runtime/speculative/expert_demand.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr double kWindowRows = 2000;  // rows after which a choice has faded to 1/e or less
constexpr int kEach = 16;             // row counts up to this are all looked at
constexpr int kPerOctave = 4;         // and from there on

// The last one is at least `max_rows`.
std::vector<int> points_up_to(int max_rows) {
  std::vector<int> points;
  for (int n = 1, step = 1; points.empty() || points.back() < max_rows; n += step) {
    points.push_back(n);
    if (n >= kEach && (n & (n - 1)) == 0) step = n / kPerOctave;
  }
  return points;
}

}  // namespace

ExpertDemand::ExpertDemand(int layers, int experts, int max_rows)
    : points_(points_up_to(max_rows)),
      sum_(points_.size()),
      layers_(static_cast<size_t>(layers)),
      expected_(static_cast<size_t>(max_rows) + 1),
      asleep_(static_cast<size_t>(experts)),
      sleep_on_(asleep_.size()),
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
  end_round();
  return true;
}

void ExpertDemand::end_round() {
  next_ = 0;
  ++rounds_;
  const auto layers = static_cast<double>(layers_.size());
  for (size_t n = 1, point = 0; n < expected_.size(); ++n) {
    if (n > static_cast<size_t>(points_[point])) ++point;
    const double below = point == 0 ? 0 : points_[point - 1];
    const double before = point == 0 ? 0 : sum_[point - 1];
    const double share = (static_cast<double>(n) - below) / (points_[point] - below);
    expected_[n] = (before + (sum_[point] - before) * share) / layers;
  }
  std::fill(sum_.begin(), sum_.end(), 0.0);
}

// An expert stays asleep in n rows with probability (1 - share)^n.
void ExpertDemand::add_expected(const Layer& layer, std::span<const int32_t> holders) {
  const double rows = std::max(layer.window_rows, 1.0);
  int32_t most = 0;
  for (size_t expert = 0; expert < asleep_.size(); ++expert) {
    sleep_on_[expert] = 1 - std::clamp(layer.window[expert] / rows, 0.0, 1.0);
    asleep_[expert] = 1;
    most = std::max(most, holders[expert]);
  }
  awake_.resize(std::max(awake_.size(), static_cast<size_t>(most) + 1));
  int step = 1;  // rows that sleep_on_ is for
  for (size_t point = 0; point < points_.size(); ++point) {
    for (const int next = points_[point] - (point == 0 ? 0 : points_[point - 1]); step < next;) {
      for (double& chance : sleep_on_) chance *= chance;
      step *= 2;
    }
    std::fill(awake_.begin(), awake_.end(), 0.0);
    for (size_t expert = 0; expert < asleep_.size(); ++expert) {
      asleep_[expert] *= sleep_on_[expert];
      if (holders[expert] < 0) continue;
      awake_[static_cast<size_t>(holders[expert])] += 1 - asleep_[expert];
    }
    sum_[point] += *std::max_element(awake_.begin(), awake_.end());
  }
}

}  // namespace brigade::runtime
