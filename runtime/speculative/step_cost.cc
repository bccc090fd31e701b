#include "runtime/speculative/step_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

constexpr double kMostWeight = 40;  // of one row count: older steps fade
constexpr double kOutlier = 2.5;    // times the mean
constexpr double kSureWeight = 8;   // takes more outliers to be given up

}  // namespace

StepCost::StepCost(int max_rows)
    : measured_(static_cast<size_t>(max_rows) + 1),
      experts_(measured_.size()),
      steps_(measured_.size()) {
  CHECK(max_rows > 0);
}

void StepCost::set_expected_experts(std::span<const double> by_rows) {
  CHECK(by_rows.size() == experts_.size());
  std::copy(by_rows.begin(), by_rows.end(), experts_.begin());
  refit();
}

size_t StepCost::index(int rows) const {
  return std::min(static_cast<size_t>(std::max(rows, 1)), measured_.size() - 1);
}

void StepCost::set_routing(std::span<const std::vector<double>> workers) {
  std::fill(experts_.begin(), experts_.end(), 0.0);
  for (const std::vector<double>& shares : workers) {
    // An expert stays asleep in n rows with probability (1 - share)^n.
    for (size_t rows = 1; rows < experts_.size(); ++rows) {
      double awake = 0;
      for (const double share : shares) {
        awake += 1 - std::pow(1 - std::clamp(share, 0.0, 1.0), static_cast<double>(rows));
      }
      experts_[rows] = std::max(experts_[rows], awake);
    }
  }
  refit();
}

void StepCost::observe_step(int rows, double experts, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  const size_t at = index(rows);
  Measured& place = measured_[at];
  // One slow step is the machine's; several in a row are the cost's.
  const bool sure = place.weight >= kSureWeight;
  const double expected = observed_ == 0 ? 0 : steps_[at];
  if (expected > 0 && seconds > kOutlier * expected) {
    if (++place.outliers < (sure ? 5 : 2)) return;
    place.weight = 0;
  }
  if (!sure && seconds * kOutlier < place.seconds) place.weight = 0;
  place.outliers = 0;
  place.weight = std::min(place.weight + 1, kMostWeight);
  place.seconds += (seconds - place.seconds) / place.weight;
  const double known = experts > 0 ? experts : experts_[at];
  place.experts += (known - place.experts) / place.weight;
  // Each early step teaches; later the fit may lag a little.
  if (++observed_ < 64 || observed_ % 8 == 0 || !sure) {
    refit();
  } else {
    steps_[at] = place.seconds;
  }
}

void StepCost::observe_wait(int depth, double seconds) {
  if (depth <= 0 || !(seconds >= 0)) return;
  wait_weight_ = wait_weight_ * 0.98 + depth * static_cast<double>(depth);
  wait_sum_ = wait_sum_ * 0.98 + depth * seconds;
  wait_per_depth_ = wait_sum_ / wait_weight_;
}

double StepCost::fitted(int rows, double experts) const {
  return fit_.fixed + fit_.per_row * rows + fit_.per_expert * experts;
}

double StepCost::squared_error(const Fit& fit) const {
  double error = 0;
  for (size_t rows = 1; rows < measured_.size(); ++rows) {
    const Measured& place = measured_[rows];
    if (place.weight == 0) continue;
    const double miss = place.seconds - fit.fixed - fit.per_row * static_cast<double>(rows) -
                        fit.per_expert * place.experts;
    error += place.weight * miss * miss;
  }
  return error;
}

// Weighted least squares with the named slopes; the others are 0. A slope that the data leave open
// comes out small (ridge).
StepCost::Fit StepCost::solve(bool rows, bool experts) const {
  double weight = 0, mean_rows = 0, mean_experts = 0, mean_seconds = 0;
  for (size_t n = 1; n < measured_.size(); ++n) {
    const Measured& place = measured_[n];
    weight += place.weight;
    mean_rows += place.weight * static_cast<double>(n);
    mean_experts += place.weight * place.experts;
    mean_seconds += place.weight * place.seconds;
  }
  if (weight == 0) return {};
  mean_rows /= weight, mean_experts /= weight, mean_seconds /= weight;
  double rr = 1e-6, ee = 1e-6, re = 0, rs = 0, es = 0;
  for (size_t n = 1; n < measured_.size(); ++n) {
    const Measured& place = measured_[n];
    const double r = static_cast<double>(n) - mean_rows, e = place.experts - mean_experts;
    const double s = place.seconds - mean_seconds;
    rr += place.weight * r * r, ee += place.weight * e * e, re += place.weight * r * e;
    rs += place.weight * r * s, es += place.weight * e * s;
  }
  Fit fit;
  if (rows && experts) {
    const double determinant = rr * ee - re * re;
    if (determinant < 1e-9 * rr * ee) return solve(true, false);
    fit.per_row = (rs * ee - es * re) / determinant;
    fit.per_expert = (es * rr - rs * re) / determinant;
  } else if (rows) {
    fit.per_row = rs / rr;
  } else if (experts) {
    fit.per_expert = es / ee;
  }
  fit.fixed = mean_seconds - fit.per_row * mean_rows - fit.per_expert * mean_experts;
  return fit;
}

// No part of a step gets cheaper with more of it.
void StepCost::refit() {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [rows, experts] :
       {std::pair{true, true}, {false, true}, {true, false}, {false, false}}) {
    const Fit fit = solve(rows, experts);
    if (fit.per_row < 0 || fit.per_expert < 0) continue;
    const double error = squared_error(fit);
    if (error < least) {
      least = error;
      fit_ = fit;
    }
  }
  fill_steps();
}

// The fit, bent to go through what was measured.
void StepCost::fill_steps() {
  const auto bend_of = [&](size_t rows) {
    return measured_[rows].seconds - fitted(static_cast<int>(rows), measured_[rows].experts);
  };
  size_t before = 0;  // the last measured row count; 0: none yet
  size_t after = 0;   // the next one
  for (size_t rows = 1; rows < steps_.size(); ++rows) {
    if (measured_[rows].weight > 0) {
      before = rows;
      steps_[rows] = measured_[rows].seconds;
      continue;
    }
    if (after <= rows) after = rows + 1;
    while (after < steps_.size() && measured_[after].weight == 0) ++after;
    double bend = 0;
    if (before > 0 && after < steps_.size()) {
      const double share = static_cast<double>(rows - before) / static_cast<double>(after - before);
      bend = bend_of(before) * (1 - share) + bend_of(after) * share;
    } else if (before > 0) {
      bend = bend_of(before);
    } else if (after < steps_.size()) {
      bend = bend_of(after);
    }
    steps_[rows] = std::max(0.0, fitted(static_cast<int>(rows), experts_[rows]) + bend);
  }
}

double StepCost::step_seconds(int rows) const { return steps_[index(rows)]; }

}  // namespace brigade::runtime
