#include "runtime/cluster/membership.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/cluster/layer_shares.h"

namespace brigade::runtime {

const char* evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kControlStreamLost: return "control stream lost";
    case Evidence::kTransportError: return "transport error";
    case Evidence::kHeartbeatMissed: return "heartbeat missed";
    case Evidence::kReplyOverdue: return "reply overdue";
    case Evidence::kWrongData:
      return "wrong data";
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
    RETURN_IF_ERROR(
        on(WorkerSuspected{static_cast<Rank>(slot - workers_.begin()), slot->incarnation,
                           Evidence::kControlStreamLost, "it joined anew"},
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
  *slot = {event.worker_id, event.incarnation, WorkerState::kActive, event.max_experts};
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
  if (!unwanted.empty()) release(event.rank, std::move(unwanted), effects);
  if (changed) {
    publish(effects);
    release_surplus(effects);
    dismiss_drained(effects);
  }
  // What was released makes room for experts that found none.
  if (started_ && short_of_room_) rebalance(effects);
  return absl::OkStatus();
}

absl::Status Membership::on(const ExpertsNotLoaded& event, Effects* effects) {
  if (event.rank < 0 || !current(event.rank, event.incarnation)) return absl::OkStatus();
  Worker& worker = workers_[event.rank];
  std::vector<ExpertKey> dropped;
  for (const ExpertKey& key : event.keys) {
    Expert& expert = at(key);
    if (expert.loading == event.rank) expert.loading = kNobody;
    const auto& holders = expert.holders;
    if (std::find(holders.begin(), holders.end(), event.rank) == holders.end())
      dropped.push_back(key);
  }
  // It may hold some of them from an earlier life.
  if (!dropped.empty()) release(event.rank, std::move(dropped), effects);
  worker.takes_more = false;
  if (started_) rebalance(effects);
  return absl::OkStatus();
}

void Membership::release(Rank rank, std::vector<ExpertKey> keys, Effects* effects) {
  if (rank != kCoordinator) {
    for (const ExpertKey& key : keys) workers_[rank].present.erase(key);
  }
  effects->push_back(
      Release{rank, rank == kCoordinator ? 0 : workers_[rank].incarnation, std::move(keys)});
}

absl::Status Membership::on(const WorkerSuspected& event, Effects* effects) {
  if (event.rank < 0 || !current(event.rank, event.incarnation)) return absl::OkStatus();
  workers_[event.rank].state = WorkerState::kLost;
  workers_[event.rank].present.clear();
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

std::vector<Rank> Membership::usable_ranks() const {
  std::vector<Rank> ranks;
  for (Rank rank = kCoordinator; rank < static_cast<Rank>(workers_.size()); ++rank) {
    if (usable(rank)) ranks.push_back(rank);
  }
  return ranks;
}

// Who is to serve the expert in the end, if that is anybody who may.
Rank Membership::owner(const Expert& expert) const {
  const Rank rank = expert.loading != kNobody ? expert.loading
                    : expert.holders.empty()  ? kNobody
                                              : expert.holders[0];
  return rank != kNobody && usable(rank) ? rank : kNobody;
}

void Membership::ask(Rank rank, const ExpertKey& key, KeysByRank* loads) {
  Expert& expert = at(key);
  if (owner(expert) == rank || expert.loading == rank) return;
  if (std::find(expert.holders.begin(), expert.holders.end(), rank) != expert.holders.end()) return;
  expert.loading = rank;
  (*loads)[rank + 1].push_back(key);
  if (rank != kCoordinator) workers_[rank].present.insert(key);
}

// Of those with room the one that holds least.
Rank Membership::rank_with_room() const {
  Rank best = kNobody;
  for (const Rank rank : usable_ranks()) {
    if (rank == kCoordinator || !workers_[rank].has_room()) continue;
    if (best == kNobody || workers_[rank].present.size() < workers_[best].present.size())
      best = rank;
  }
  return best;
}

int Membership::Worker::present_of(int moe_layer) const {
  return static_cast<int>(
      std::distance(present.lower_bound({moe_layer, 0}), present.lower_bound({moe_layer + 1, 0})));
}

// What the rank could carry of a layer when its memory takes `left` for this layer and those to
// come.
int Membership::allowance(Rank rank, int moe_layer, int64_t left) const {
  if (rank != kCoordinator && !workers_[rank].takes_more)
    return workers_[rank].present_of(moe_layer);
  const int layers_left = config_.moe_layers - moe_layer;
  const int64_t even = left / layers_left + (left % layers_left > 0);
  return static_cast<int>(std::min<int64_t>(config_.experts, even));
}

// One layer: every expert gets a usable holder (or somebody who loads it), and no worker carries
// more than its share, which is even but for those with little memory. Experts stay where they are
// while that is so: movement is bounded by need. `left`: what each usable rank's memory takes for
// this layer and those to come. What no worker has room for stays above a share, or goes to the
// coordinator.
void Membership::assign_layer(int moe_layer, std::vector<int64_t>* left, KeysByRank* loads) {
  const std::vector<Rank> ranks = usable_ranks();
  CHECK(!ranks.empty());
  const size_t count = ranks.size();
  std::vector<int> allowances;
  for (size_t i = 0; i < count; ++i) {
    allowances.push_back(allowance(ranks[i], moe_layer, (*left)[i]));
  }
  LayerShares shares(std::move(allowances), config_.experts);
  // Who carries one more alternates from layer to layer, so that totals are even too.
  const size_t first = size_t(moe_layer) * shares.spare() % count;
  const auto position_of = [&](Rank rank) {
    return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  std::vector<int> unassigned;
  for (int e = 0; e < config_.experts; ++e) {
    const size_t position = position_of(owner(at({moe_layer, e})));
    if (position == count || !shares.take(position)) unassigned.push_back(e);  // or it moves
  }
  // Rank by rank, so that each gets runs of neighbours.
  size_t next = 0;
  const auto takes = [&](Rank rank, size_t position) {
    return (rank == kCoordinator || workers_[rank].has_room()) && shares.take(position);
  };
  for (const int e : unassigned) {
    const ExpertKey key = {moe_layer, e};
    while (next < count && !takes(ranks[(first + next) % count], (first + next) % count)) ++next;
    if (next < count) {
      ask(ranks[(first + next) % count], key, loads);
      continue;
    }
    short_of_room_ = true;
    if (owner(at(key)) != kNobody) continue;
    const Rank rank = rank_with_room();
    ask(rank == kNobody ? kCoordinator : rank, key, loads);
  }
  for (size_t i = 0; i < count; ++i) (*left)[i] -= shares.carried(i);
}

void Membership::rebalance(Effects* effects) {
  std::vector<int64_t> left;
  for (const Rank rank : usable_ranks()) {
    left.push_back(rank == kCoordinator ? std::numeric_limits<int64_t>::max()
                                        : workers_[rank].max_experts);
  }
  short_of_room_ = false;
  KeysByRank loads(workers_.size() + 1);
  for (int layer = 0; layer < config_.moe_layers; ++layer) assign_layer(layer, &left, &loads);
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
    if (!released[rank + 1].empty()) release(rank, std::move(released[rank + 1]), effects);
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
