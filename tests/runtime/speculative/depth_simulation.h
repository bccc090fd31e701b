// A virtual clock for depth control: what steps of so many rows cost, streams of a given
// acceptance, and what the control chooses and is told. One thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "runtime/speculative/depth_control.h"

namespace brigade::tests {

using runtime::DepthAsk;
using runtime::DepthControl;
using runtime::DepthMode;
using runtime::Survival;

struct CostTable {
  std::string name;
  std::function<double(int rows)> milliseconds;
};

inline double between(double x, const std::vector<std::pair<double, double>>& points) {
  size_t i = 1;
  while (i + 1 < points.size() && points[i].first < x) ++i;
  const auto [x0, y0] = points[i - 1];
  const auto [x1, y1] = points[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// From this repository's benchmarks: steps of a 1.3 G model with 16 experts top-2 (17.5 ms at 2
// distinct experts, 98.8 ms at 14.3), and the bf16 product 4096 x 1024 by rows. Then two shapes of
// accelerators: rows padded to tiles of 8, and rows that cost next to nothing.
inline std::vector<CostTable> tables() {
  return {
      {"experts", [](int rows) { return 4.3 + 6.6 * 16 * (1 - std::pow(14.0 / 16, rows)); }},
      {"dense",
       [](int rows) {
         return 20 * between(rows, {{1, 1}, {4, 1.12}, {16, 1.86}, {64, 5.77}});
       }},
      {"tiles", [](int rows) { return 8 + 12 * std::ceil(rows / 8.0); }},
      {"free rows", [](int rows) { return 20 + 0.05 * rows; }},
  };
}

struct World {
  CostTable table;
  double acceptance = 0.5;
  int streams = 1;
  double draft_ms = 0;  // of one more draft of every sequence, on the step's path
};

inline double expected_tokens(double acceptance, int depth) {
  return (1 - std::pow(acceptance, depth + 1)) / (1 - acceptance);
}

// Tokens per second with every sequence at `depth`.
inline double fixed_rate(const World& world, int depth) {
  const double ms = world.table.milliseconds(world.streams * (depth + 1)) + world.draft_ms * depth;
  return 1000 * world.streams * expected_tokens(world.acceptance, depth) / ms;
}

class Simulation {
 public:
  Simulation(int streams, uint64_t seed) : random_(seed), control_({}), sequences_(streams) {
    asks_.resize(static_cast<size_t>(streams));
    depths_.resize(static_cast<size_t>(streams));
    wants_.assign(asks_.size(), 8);
    for (size_t i = 0; i < asks_.size(); ++i) {
      asks_[i] = {.mode = DepthMode::kAuto,
                  .fixed = 0,
                  .available = 8,
                  .survival = &sequences_[i],
                  .want = &wants_[i]};
    }
  }
  // Acceptance of sequence i.
  std::function<double(size_t)> acceptance = [](size_t) { return 0.5; };
  // Measured time of a step of so many rows with drafts up to a depth, without noise.
  std::function<double(int rows, int depth)> milliseconds;
  std::function<double(int depth)> wait_ms = [](int) { return 0.0; };

  void step() {
    // What was asked for last time is there now.
    for (size_t i = 0; i < asks_.size(); ++i) {
      asks_[i].available = wants_[i];
      asked_ += wants_[i];
      resting_ += wants_[i] == 0;
    }
    control_.choose(asks_, 0, 256 - static_cast<int>(asks_.size()), depths_);
    int rows = 0, deepest = 0;
    for (size_t i = 0; i < asks_.size(); ++i) {
      int accepted = 0;
      while (accepted < depths_[i] && unit_(random_) < acceptance(i)) ++accepted;
      control_.record(&sequences_[i], depths_[i], accepted);
      // What such a depth gives on average: luck is not the control's.
      tokens_ += expected_tokens(acceptance(i), depths_[i]);
      rows += 1 + depths_[i];
      deepest = std::max(deepest, depths_[i]);
    }
    // 3 % of noise, and now and then a step that the machine held up.
    const double noise = std::max(0.8, 1 + 0.03 * normal_(random_));
    const double ms = milliseconds(rows, deepest), wait = wait_ms(deepest);
    seconds_ += (ms + wait) / 1000;
    const double seen = ms * noise * (unit_(random_) < 0.005 ? 5 : 1);
    control_.cost().observe_step(rows, 0, seen / 1000);
    control_.cost().observe_wait(deepest, wait / 1000);
  }
  void run(int steps) {
    tokens_ = seconds_ = 0;
    asked_ = resting_ = 0;
    for (int i = 0; i < steps; ++i) step();
  }
  // Since run() began: drafts asked for, and sequences' steps without any.
  int64_t asked() const { return asked_; }
  int64_t resting() const { return resting_; }
  double rate() const { return tokens_ / seconds_; }
  DepthControl& control() { return control_; }
  std::vector<DepthAsk>& asks() { return asks_; }
  const std::vector<int>& depths() const { return depths_; }

 private:
  std::mt19937_64 random_;
  std::uniform_real_distribution<> unit_{0, 1};
  std::normal_distribution<> normal_{0, 1};
  DepthControl control_;
  std::vector<Survival> sequences_;
  std::vector<DepthAsk> asks_;
  std::vector<int> depths_, wants_;
  int64_t asked_ = 0, resting_ = 0;
  double tokens_ = 0, seconds_ = 0;
};

}  // namespace brigade::tests
