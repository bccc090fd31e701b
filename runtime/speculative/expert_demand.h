// How many distinct experts a step of n rows is going to make the busiest holder read, from how the
// rows of the last while chose: a decaying window over each layer's counts and who holds what. One
// layer is looked at at a time, so that a step pays for one. Rows are taken to choose
// independently; what steps really read corrects that (StepCost). Pure; memory planned at
// construction, but for a new holder. Step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace brigade::runtime {

class ExpertDemand {
 public:
  ExpertDemand(int layers, int experts, int max_rows);

  // The next layer's turn; its counts are expected here.
  int next_layer() const { return next_; }
  // All layers have been looked at once.
  bool known() const { return rounds_ > 0; }
  // `counts`: rows by expert since start, `rows` those they came from; summed over all microbatches
  // by the caller. `holders`: by expert, from 0; -1: nobody. True when a round over all layers has
  // ended and expected() is new.
  bool take_layer(std::span<const int64_t> counts, int64_t rows, std::span<const int32_t> holders);

  // [max_rows + 1], by rows: distinct experts a layer of the holder that reads most, mean over
  // layers.
  std::span<const double> expected() const { return expected_; }

 private:
  struct Layer {
    std::vector<int64_t> seen;   // counts at its last turn
    std::vector<double> window;  // by expert
    double window_rows = 0;
    int64_t seen_rows = 0;
  };
  void add_expected(const Layer& layer, std::span<const int32_t> holders);
  void end_round();

  // Row counts that are looked at, and what was found, summed over layers; a straight line between
  // them is near enough, for the curve is flat where they are far apart.
  std::vector<int> points_;
  std::vector<double> sum_;  // [points]
  std::vector<Layer> layers_;
  int next_ = 0;
  int64_t rounds_ = 0;
  std::vector<double> expected_;           // [max_rows + 1]
  std::vector<double> asleep_, sleep_on_;  // scratch, by expert
  std::vector<double> awake_;              // scratch, by holder
};

}  // namespace brigade::runtime
