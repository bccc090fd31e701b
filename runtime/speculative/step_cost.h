// What a target pass costs: measured time as a function of its rows and of the distinct experts
// that the slowest worker has to read for them, plus what is measured of waiting for drafts. Row
// counts that were measured answer for themselves; between and beyond them a fit through all of
// them does, and what nothing is known about is taken to be free, which invites one try. Pure; step
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace brigade::runtime {

class StepCost {
 public:
  explicit StepCost(int max_rows);

  // [worker][expert]: share of rows that choose the expert, averaged over layers. Empty: a dense
  // model.
  void set_routing(std::span<const std::vector<double>> workers);
  // The same as numbers: by rows, distinct experts per layer of the slowest worker.
  void set_expected_experts(std::span<const double> by_rows);
  // Distinct experts per layer that `rows` independent rows make the slowest worker read.
  double expected_experts(int rows) const { return experts_[index(rows)]; }

  // A step of `rows` took `seconds` and made the slowest worker read `experts` distinct experts per
  // layer (0: not known, the expected number is taken).
  void observe_step(int rows, double experts, double seconds);
  // A step with drafts up to `depth` waited `seconds` for them.
  void observe_wait(int depth, double seconds);

  double step_seconds(int rows) const;
  double wait_seconds(int depth) const { return depth * wait_per_depth_; }
  bool measured(int rows) const { return measured_[index(rows)].weight > 0; }

 private:
  struct Measured {
    double weight = 0;  // steps, at most kMostWeight
    double seconds = 0, experts = 0;
    int outliers = 0;  // in a row
  };
  struct Fit {
    double fixed = 0, per_row = 0, per_expert = 0;
  };
  size_t index(int rows) const;
  double fitted(int rows, double experts) const;
  void refit();
  double squared_error(const Fit& fit) const;
  Fit solve(bool rows, bool experts) const;
  void fill_steps();

  std::vector<Measured> measured_;  // [max_rows + 1]
  std::vector<double> experts_;     // [max_rows + 1]
  std::vector<double> steps_;       // [max_rows + 1], the answers
  Fit fit_;
  int64_t observed_ = 0;
  double wait_weight_ = 0, wait_sum_ = 0, wait_per_depth_ = 0;
};

}  // namespace brigade::runtime
