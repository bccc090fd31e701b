#include "runtime/cluster/layer_shares.h"

#include <algorithm>
#include <utility>

namespace brigade::runtime {

// Water of volume `experts` over vessels of unequal height: `low_` is its level.
LayerShares::LayerShares(std::vector<int> allowances, int experts)
    : allowances_(std::move(allowances)), spare_(experts), carried_(allowances_.size()) {
  while (low_ < experts) {
    const auto taller = static_cast<int>(std::count_if(
        allowances_.begin(), allowances_.end(), [this](int allowed) { return allowed > low_; }));
    if (taller == 0 || taller > spare_) return;
    spare_ -= taller;
    ++low_;
  }
}

bool LayerShares::take(size_t position) {
  int& carried = carried_[position];
  if (carried < std::min(allowances_[position], low_)) {
    ++carried;
    return true;
  }
  if (carried != low_ || allowances_[position] <= low_ || spare_ == 0) return false;
  ++carried;
  --spare_;
  return true;
}

}  // namespace brigade::runtime
