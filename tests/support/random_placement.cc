#include "tests/support/random_placement.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace brigade::tests {

using expert_parallel::Placement;
using expert_parallel::Rank;

Placement random_placement(const expert_parallel::ExpertGeometry& geometry, int workers,
                           std::mt19937_64& random) {
  if (workers == 0) return Placement::local(geometry.moe_layers, geometry.experts);
  enum Kind { kEven, kSkewed, kReplicas };
  const auto kind = static_cast<Kind>(random() % 3);
  if (kind == kEven) {
    std::vector<Rank> ranks(static_cast<size_t>(workers));
    std::iota(ranks.begin(), ranks.end(), 0);
    std::shuffle(ranks.begin(), ranks.end(), random);
    return Placement::even(1, geometry.moe_layers, geometry.experts, ranks);
  }
  const auto range = static_cast<uint64_t>(workers);
  const auto low_rank = [&] {
    return static_cast<Rank>(std::min(random() % range, random() % range));
  };
  std::vector<std::vector<std::vector<Rank>>> replicas(static_cast<size_t>(geometry.moe_layers));
  for (auto& layer : replicas) {
    layer.resize(static_cast<size_t>(geometry.experts));
    for (auto& ranks : layer) {
      for (uint64_t n = kind == kReplicas ? 1 + random() % 3 : 1; n > 0; --n) {
        const Rank rank = low_rank();
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      }
    }
  }
  return *Placement::create(1, replicas, workers);
}

}  // namespace brigade::tests
