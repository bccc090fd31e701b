#include "runtime/cluster/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

const char* evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kControlStreamLost: return "control stream lost";
    case Evidence::kTransportError: return "transport error";
    case Evidence::kHeartbeatMissed: return "heartbeat missed";
    case Evidence::kReplyOverdue: return "reply overdue";
    case Evidence::kWrongData: return "wrong data";
    case Evidence::kLoadFailed: return "experts could not be loaded";
  }
  return "?";
}

Membership::Membership(const MembershipConfig& config)
    : config_(config), experts_(size_t(config.moe_layers) * config.experts) {}

absl::StatusOr<std::vector<MembershipEffect>> Membership::handle(const MembershipEvent& event) {
  Effects effects;
  RETURN_IF_ERROR(std::visit([&](const auto& e) { return on(e, &effects); }, event));
  return effects;
}

bool Membership::usable(Rank rank) const {
  if (rank == kCoordinator) return active_workers() == 0;
  return rank >= 0 && workers_[rank].state == WorkerState::kActive;
}

bool Membership::current(Rank rank, uint64_t incarnation) const {
  if (rank == kCoordinator) return true;
  if (rank < 0 || rank >= static_cast<Rank>(workers_.size())) return false;
  const Worker& worker = workers_[rank];
  return worker.incarnation == incarnation &&
         (worker.state == WorkerState::kActive || worker.state == WorkerState::kLeaving);
}

int Membership::active_workers() const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.state == WorkerState::kActive;
  }));
}

int Membership::parked_experts() const {
  return static_cast<int>(std::count_if(experts_.begin(), experts_.end(), [](const Expert& expert) {
    return expert.holders.empty();
  }));
}

absl::Status Membership::on(const WorkerJoined& event, Effects* effects) {
  // A worker that comes back gets its slot again; its old process is lost if nobody noticed yet.
  auto slot = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.worker_id == event.worker_id;
  });
  if (slot != workers_.end() && current(static_cast<Rank>(slot - workers_.begin()), slot->incarnation)) {
    if (slot->incarnation == event.incarnation) return absl::OkStatus();
    RETURN_IF_ERROR(on(WorkerSuspected{static_cast<Rank>(slot - workers_.begin()), slot->incarnation,
                                       Evidence::kControlStreamLost, "its process was replaced"},
                       effects));
  }
  if (slot == workers_.end()) {
    if (static_cast<int>(workers_.size()) < config_.max_ranks) {
      slot = workers_.insert(workers_.end(), Worker());
    } else {
      slot = std::find_if(workers_.begin(), workers_.end(), [](const Worker& worker) {
        return worker.state == WorkerState::kLost;
      });
    }
    if (slot == workers_.end()) {
      return absl::ResourceExhaustedError(absl::StrCat("worker ", event.worker_id, ": all ",
                                                       config_.max_ranks, " rank slots are taken"));
    }
  }
  *slot = {event.worker_id, event.incarnation, WorkerState::kActive};
  effects->push_back(Admit{static_cast<Rank>(slot - workers_.begin()), event.incarnation});
  if (started_) {
    rebalance(effects);
  } else if (active_workers() >= config_.expected_workers) {
    start(effects);
  }
  return absl::OkStatus();
}

absl::Status Membership::on(const JoinDeadlinePassed&, Effects* effects) {
  if (!started_) start(effects);
  return absl::OkStatus();
}

absl::Status Membership::on(const ExpertsLoaded& event, Effects* effects) {
  if (!current(event.rank, event.incarnation)) return absl::OkStatus();
  bool changed = false;
  std::vector<ExpertKey> unwanted;
  for (const ExpertKey& key : event.keys) {
    if (key.moe_layer < 0 || key.moe_layer >= config_.moe_layers || key.expert < 0 ||
        key.expert >= config_.experts) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", event.rank, " reports expert ", key.expert,
                                                     " of MoE layer ", key.moe_layer,
                                                     ", which does not exist"));
    }
    Expert& expert = at(key);
    if (expert.loading != event.rank) {
      const auto& holders = expert.holders;
      const bool held = std::find(holders.begin(), holders.end(), event.rank) != holders.end();
      if (!held) unwanted.push_back(key);  // somebody else has been asked since
      continue;
    }
    expert.loading = kNobody;
    // The newcomer goes first; earlier holders stay behind it until the publish, then are released.
    expert.holders.insert(expert.holders.begin(), event.rank);
    changed = true;
  }
  if (!unwanted.empty()) effects->push_back(Release{event.rank, event.incarnation, std::move(unwanted)});
  if (!changed) return absl::OkStatus();
  publish(effects);
  release_surplus(effects);
  dismiss_drained(effects);
  return absl::OkStatus();
}

absl::Status Membership::on(const WorkerSuspected& event, Effects* effects) {
  if (event.rank < 0 || !current(event.rank, event.incarnation)) return absl::OkStatus();
  workers_[event.rank].state = WorkerState::kLost;
  effects->push_back(Mask{event.rank, event.incarnation,
                          absl::StrCat(evidence_name(event.evidence),
                                       event.detail.empty() ? "" : ": ", event.detail)});
  bool held = false;
  for (Expert& expert : experts_) {
    held |= std::erase(expert.holders, event.rank) > 0;
    if (expert.loading == event.rank) expert.loading = kNobody;
  }
  if (!started_) return absl::OkStatus();
  if (held) publish(effects);
  rebalance(effects);
  return absl::OkStatus();
}

absl::Status Membership::on(const WorkerLeaving& event, Effects* effects) {
  if (event.rank < 0 || !current(event.rank, event.incarnation)) return absl::OkStatus();
  workers_[event.rank].state = WorkerState::kLeaving;
  for (Expert& expert : experts_) {
    if (expert.loading == event.rank) expert.loading = kNobody;
  }
  if (started_) rebalance(effects);
  dismiss_drained(effects);
  return absl::OkStatus();
}

void Membership::start(Effects* effects) {
  started_ = true;
  rebalance(effects);
}

// One layer: every expert gets a usable holder (or somebody who loads it), and no worker carries more
// than its even share. Experts stay where they are while that is so: movement is bounded by need.
void Membership::assign_layer(int moe_layer, std::vector<std::vector<ExpertKey>>* loads) {
  std::vector<Rank> ranks;
  for (Rank rank = kCoordinator; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (usable(rank)) ranks.push_back(rank);
  }
  CHECK(!ranks.empty());
  const int count = static_cast<int>(ranks.size());
  const int low = config_.experts / count;
  int may_exceed = config_.experts % count;  // so many ranks may carry low + 1
  // Who carries one more alternates from layer to layer, so that totals are even too.
  std::rotate(ranks.begin(), ranks.begin() + moe_layer * may_exceed % count, ranks.end());
  std::vector<int> carried(workers_.size() + 1, 0);
  std::vector<int> unassigned;
  const auto owner = [&](const Expert& expert) {
    if (expert.loading != kNobody) return usable(expert.loading) ? expert.loading : kNobody;
    return !expert.holders.empty() && usable(expert.holders[0]) ? expert.holders[0] : kNobody;
  };
  for (int e = 0; e < config_.experts; ++e) {
    const Rank rank = owner(at({moe_layer, e}));
    if (rank == kNobody) {
      unassigned.push_back(e);
    } else if (carried[rank + 1] < low) {
      ++carried[rank + 1];
    } else if (carried[rank + 1] == low && may_exceed > 0) {
      ++carried[rank + 1];
      --may_exceed;
    } else {
      unassigned.push_back(e);  // above its share: moves
    }
  }
  // Rank by rank, so that each gets runs of neighbours.
  size_t next = 0;
  for (const int e : unassigned) {
    while (carried[ranks[next] + 1] >= low + (may_exceed > 0)) CHECK(++next < ranks.size());
    const Rank rank = ranks[next];
    if (carried[rank + 1]++ == low) --may_exceed;
    Expert& expert = at({moe_layer, e});
    if (owner(expert) == rank) continue;
    if (std::find(expert.holders.begin(), expert.holders.end(), rank) != expert.holders.end()) continue;
    expert.loading = rank;
    (*loads)[rank + 1].push_back({moe_layer, e});
  }
}

void Membership::rebalance(Effects* effects) {
  std::vector<std::vector<ExpertKey>> loads(workers_.size() + 1);
  for (int layer = 0; layer < config_.moe_layers; ++layer) assign_layer(layer, &loads);
  for (Rank rank = kCoordinator; rank < static_cast<Rank>(workers_.size()); ++rank) {
    std::vector<ExpertKey>& keys = loads[rank + 1];
    if (keys.empty()) continue;
    effects->push_back(Load{rank, rank == kCoordinator ? 0 : workers_[rank].incarnation, std::move(keys)});
  }
}

void Membership::publish(Effects* effects) {
  std::vector<std::vector<std::vector<Rank>>> replicas(config_.moe_layers);
  std::vector<ExpertKey> parked;
  for (int layer = 0; layer < config_.moe_layers; ++layer) {
    for (int e = 0; e < config_.experts; ++e) {
      const std::vector<Rank>& holders = at({layer, e}).holders;
      if (holders.empty()) parked.push_back({layer, e});
      replicas[layer].push_back(holders);
    }
  }
  auto placement = Placement::create(++version_, std::move(replicas), static_cast<int>(workers_.size()));
  CHECK(placement.ok());
  effects->push_back(Publish{*std::move(placement), std::move(parked)});
}

// One holder is enough until replicas are asked for: the others let go, after a publish without them.
void Membership::release_surplus(Effects* effects) {
  std::vector<std::vector<ExpertKey>> released(workers_.size() + 1);
  bool any = false;
  for (int layer = 0; layer < config_.moe_layers; ++layer) {
    for (int e = 0; e < config_.experts; ++e) {
      std::vector<Rank>& holders = at({layer, e}).holders;
      for (size_t i = 1; i < holders.size(); ++i) {
        released[holders[i] + 1].push_back({layer, e});
        any = true;
      }
      if (holders.size() > 1) holders.resize(1);
    }
  }
  if (!any) return;
  publish(effects);
  for (Rank rank = kCoordinator; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (released[rank + 1].empty()) continue;
    effects->push_back(Release{rank, rank == kCoordinator ? 0 : workers_[rank].incarnation,
                               std::move(released[rank + 1])});
  }
}

void Membership::dismiss_drained(Effects* effects) {
  for (Rank rank = 0; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (workers_[rank].state != WorkerState::kLeaving) continue;
    const bool holds_any = std::any_of(experts_.begin(), experts_.end(), [&](const Expert& expert) {
      return std::find(expert.holders.begin(), expert.holders.end(), rank) != expert.holders.end();
    });
    if (holds_any) continue;
    workers_[rank].state = WorkerState::kLost;
    effects->push_back(Dismiss{rank, workers_[rank].incarnation});
  }
}

}  // namespace brigade::runtime
