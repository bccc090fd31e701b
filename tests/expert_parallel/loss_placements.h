// Placements of one layer over three ranks, for tests in which a rank is lost or wrong.
#pragma once

#include <utility>
#include <vector>

#include "expert_parallel/routing/placement.h"

namespace brigade::tests {

// Expert e on ranks e % 3 and (e + 1) % 3, then the coordinator if it holds experts.
inline expert_parallel::Placement replicated(int experts, uint64_t version, bool coordinator) {
  std::vector<std::vector<expert_parallel::Rank>> layer;
  for (int e = 0; e < experts; ++e) {
    layer.push_back({e % 3, (e + 1) % 3});
    if (coordinator) layer.back().push_back(expert_parallel::kCoordinator);
  }
  return *expert_parallel::Placement::create(version, {layer}, 3);
}

inline expert_parallel::Placement single_homes(int experts, uint64_t version) {
  std::vector<std::vector<expert_parallel::Rank>> layer;
  for (int e = 0; e < experts; ++e) layer.push_back({e % 3});
  return *expert_parallel::Placement::create(version, {layer}, 3);
}

// Says that rank 1 has what rank 0 has in truth.
inline expert_parallel::Placement misplaced(int experts, uint64_t version) {
  std::vector<std::vector<expert_parallel::Rank>> layer;
  for (int e = 0; e < experts; ++e) layer.push_back({e % 3 == 0 ? 1 : e % 3});
  return *expert_parallel::Placement::create(version, {layer}, 3);
}

}  // namespace brigade::tests
