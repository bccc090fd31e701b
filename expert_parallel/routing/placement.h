// Which rank holds which expert: for each MoE layer and expert an ordered list of replicas, plus a
// version that changes with every change. Pure data, immutable once published; a step uses one
// version end to end. Readers on any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace brigade::expert_parallel {

// Rank slots count from 0; the coordinator's own experts are at kCoordinator.
using Rank = int32_t;
inline constexpr Rank kCoordinator = -1;

class Placement {
 public:
  // replicas[layer][expert]: ranks in order of preference, no rank twice; empty: nobody holds it now.
  // INVALID_ARGUMENT naming layer and expert otherwise.
  static absl::StatusOr<Placement> create(uint64_t version,
                                          std::vector<std::vector<std::vector<Rank>>> replicas,
                                          int num_ranks);
  // Everything at the coordinator.
  static Placement local(int moe_layers, int experts);
  // Contiguous runs of experts; sizes differ by at most one; ranks past the experts hold none.
  static Placement even(uint64_t version, int moe_layers, int experts, std::span<const Rank> ranks);

  uint64_t version() const { return version_; }
  int moe_layers() const { return static_cast<int>(replicas_.size()); }
  int experts() const { return replicas_.empty() ? 0 : static_cast<int>(replicas_[0].size()); }
  int num_ranks() const { return num_ranks_; }
  std::span<const Rank> replicas(int moe_layer, int expert) const {
    return replicas_[moe_layer][expert];
  }
  bool holds(Rank rank, int moe_layer, int expert) const;
  int experts_on(Rank rank, int moe_layer) const;

 private:
  Placement(uint64_t version, std::vector<std::vector<std::vector<Rank>>> replicas, int num_ranks)
      : version_(version), replicas_(std::move(replicas)), num_ranks_(num_ranks) {}

  uint64_t version_ = 0;
  std::vector<std::vector<std::vector<Rank>>> replicas_;
  int num_ranks_ = 0;
};

}  // namespace brigade::expert_parallel
