// What an exchange needs to know of the cluster: the placement, and which life of each rank slot is
// there. Immutable; a new one is published with every change. Readers on any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "expert_parallel/routing/placement.h"

namespace brigade::expert_parallel {

struct ClusterView {
  std::shared_ptr<const Placement> placement;
  std::vector<uint64_t> incarnation;  // by rank slot; 0: nobody to send to

  uint64_t incarnation_of(Rank rank) const {
    return rank >= 0 && static_cast<size_t>(rank) < incarnation.size() ? incarnation[rank] : 0;
  }
};

}  // namespace brigade::expert_parallel
