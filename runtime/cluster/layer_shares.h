// How many experts of one MoE layer each rank may carry: even shares, but for ranks whose memory
// takes less; what these cannot carry goes evenly to the others. Value; the control thread's.
#pragma once

#include <cstddef>
#include <vector>

namespace brigade::runtime {

class LayerShares {
 public:
  // By position: what each rank could carry of this layer.
  LayerShares(std::vector<int> allowances, int experts);

  // One more for this rank; false: it has its share.
  bool take(size_t position);
  int carried(size_t position) const { return carried_[position]; }
  // So many ranks may carry one more than the others.
  int spare() const { return spare_; }

 private:
  const std::vector<int> allowances_;
  int low_ = 0, spare_ = 0;
  std::vector<int> carried_;
};

}  // namespace brigade::runtime
