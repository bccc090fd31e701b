// Which experts a microbatch's rows went to: counts since start, the last step's distinct experts,
// and who holds each. Filled by the model as it counts a step, read by the engine between steps
// without a copy. Only a new holder allocates once the layers are there. Step thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace brigade::runtime {

class ExpertUse {
 public:
  // Holders are small numbers, from 0; experts nobody holds are kNobody's.
  static constexpr int32_t kNobody = -1;

  // Before the first step. All experts are holder 0's at first.
  void add_layer(int experts);

  // The model's side. Layer after layer between begin_step() and end_step(): each row's choices.
  void begin_step();
  void count(int moe_layer, int32_t expert);
  void end_step(int rows);
  void set_holder(int moe_layer, int expert, int32_t holder);

  int layers() const { return static_cast<int>(rows_.size()); }
  // [moe layer][expert], rows routed since start.
  const std::vector<std::vector<int64_t>>& rows() const { return rows_; }
  // Rows since start: each chose top-k experts of every layer.
  int64_t tokens() const { return tokens_; }
  std::span<const int32_t> holders(int moe_layer) const {
    return holders_[static_cast<size_t>(moe_layer)];
  }
  // Of the last step, mean over the layers: distinct experts, and those of the holder that had to
  // read most of them.
  double distinct() const { return distinct_; }
  double slowest() const { return slowest_; }

 private:
  std::vector<std::vector<int64_t>> rows_;
  std::vector<std::vector<int32_t>> holders_;
  std::vector<std::vector<int64_t>> last_step_;  // [moe layer][expert], number of its last step
  std::vector<int32_t> awake_{0};                // scratch, by holder
  int64_t tokens_ = 0, steps_ = 0;
  double distinct_ = 0, slowest_ = 0;
};

}  // namespace brigade::runtime
