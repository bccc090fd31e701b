#include "expert_parallel/routing/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"

namespace brigade::expert_parallel {
namespace {

using Replicas = std::vector<std::vector<std::vector<Rank>>>;

absl::Status check_replicas(const std::vector<Rank>& ranks, int num_ranks, size_t layer, size_t expert) {
  const std::string where = absl::StrCat("placement of MoE layer ", layer, ", expert ", expert);
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < kCoordinator || ranks[i] >= num_ranks) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " names rank ", ranks[i], ", ranks go from 0 to ", num_ranks - 1));
    }
    if (std::count(ranks.begin(), ranks.end(), ranks[i]) > 1) {
      return absl::InvalidArgumentError(absl::StrCat(where, " names rank ", ranks[i], " twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> Placement::create(uint64_t version, Replicas replicas, int num_ranks) {
  for (size_t layer = 0; layer < replicas.size(); ++layer) {
    if (replicas[layer].size() != replicas[0].size()) {
      return absl::InvalidArgumentError(absl::StrCat("placement of MoE layer ", layer, " lists ",
                                                     replicas[layer].size(), " experts, layer 0 lists ",
                                                     replicas[0].size()));
    }
    for (size_t expert = 0; expert < replicas[layer].size(); ++expert) {
      const absl::Status status = check_replicas(replicas[layer][expert], num_ranks, layer, expert);
      if (!status.ok()) return status;
    }
  }
  return Placement(version, std::move(replicas), num_ranks);
}

Placement Placement::local(int moe_layers, int experts) {
  const Rank coordinator = kCoordinator;
  return even(0, moe_layers, experts, {&coordinator, 1});
}

Placement Placement::even(uint64_t version, int moe_layers, int experts, std::span<const Rank> ranks) {
  CHECK(!ranks.empty());
  const int count = static_cast<int>(ranks.size());
  std::vector<std::vector<Rank>> layer(experts);
  for (int i = 0; i < count; ++i) {
    // The first experts % count ranks hold one more.
    const int first = i * (experts / count) + std::min(i, experts % count);
    const int last = first + experts / count + (i < experts % count);
    for (int expert = first; expert < last; ++expert) layer[expert] = {ranks[i]};
  }
  const Rank highest = *std::max_element(ranks.begin(), ranks.end());
  return Placement(version, Replicas(moe_layers, layer), highest + 1);
}

bool Placement::holds(Rank rank, int moe_layer, int expert) const {
  const auto ranks = replicas(moe_layer, expert);
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

int Placement::experts_on(Rank rank, int moe_layer) const {
  int count = 0;
  for (int expert = 0; expert < experts(); ++expert) count += holds(rank, moe_layer, expert);
  return count;
}

}  // namespace brigade::expert_parallel
