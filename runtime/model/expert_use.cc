#include "runtime/model/expert_use.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {

void ExpertUse::add_layer(int experts) {
  const auto size = static_cast<size_t>(experts);
  rows_.emplace_back(size, 0);
  holders_.emplace_back(size, 0);
  last_step_.emplace_back(size, 0);
}

void ExpertUse::begin_step() { ++steps_; }

void ExpertUse::count(int moe_layer, int32_t expert) {
  const auto layer = static_cast<size_t>(moe_layer), at = static_cast<size_t>(expert);
  ++rows_[layer][at];
  last_step_[layer][at] = steps_;
}

void ExpertUse::end_step(int rows) {
  tokens_ += rows;
  int64_t distinct = 0, slowest = 0;
  for (size_t layer = 0; layer < rows_.size(); ++layer) {
    std::fill(awake_.begin(), awake_.end(), 0);
    for (size_t expert = 0; expert < last_step_[layer].size(); ++expert) {
      if (last_step_[layer][expert] != steps_) continue;
      ++distinct;
      const int32_t holder = holders_[layer][expert];
      if (holder != kNobody) ++awake_[static_cast<size_t>(holder)];
    }
    slowest += *std::max_element(awake_.begin(), awake_.end());
  }
  const double layers = rows_.empty() ? 1 : static_cast<double>(rows_.size());
  distinct_ = static_cast<double>(distinct) / layers;
  slowest_ = static_cast<double>(slowest) / layers;
}

void ExpertUse::set_holder(int moe_layer, int expert, int32_t holder) {
  CHECK(holder >= kNobody);
  awake_.resize(std::max(awake_.size(), static_cast<size_t>(holder + 1)));
  holders_[static_cast<size_t>(moe_layer)][static_cast<size_t>(expert)] = holder;
}

}  // namespace brigade::runtime
