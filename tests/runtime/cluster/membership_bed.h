// A cluster without workers' processes for the tests of membership: it carries out the effects of
// the state machine as a cluster would, and checks what must hold after each. One test's thread.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/cluster/membership.h"

namespace brigade::runtime {

class Cluster {
 public:
  explicit Cluster(const MembershipConfig& config) : config_(config), membership_(config) {}

  void send(const MembershipEvent& event) {
    auto effects = membership_.handle(event);
    ASSERT_TRUE(effects.ok()) << effects.status();
    for (const MembershipEffect& effect : *effects) carry_out(effect);
  }
  void join(const std::string& id) {
    WorkerJoined joined{id, ++incarnations_[id]};
    if (limits_.contains(id)) joined.max_experts = limits_[id];
    send(joined);
  }
  void lose(Rank rank, Evidence evidence = Evidence::kControlStreamLost) {
    send(WorkerSuspected{rank, incarnation(rank), evidence, ""});
  }
  // The rank finishes everything it was told to load.
  void finish_loads(Rank rank) {
    std::vector<ExpertKey> keys(loading_[rank].begin(), loading_[rank].end());
    loading_[rank].clear();
    held_[rank].insert(keys.begin(), keys.end());
    send(ExpertsLoaded{rank, rank == kCoordinator ? 0 : incarnation(rank), keys});
  }
  // It loads nothing of it.
  void fail_loads(Rank rank) {
    std::vector<ExpertKey> keys(loading_[rank].begin(), loading_[rank].end());
    loading_[rank].clear();
    send(ExpertsNotLoaded{rank, incarnation(rank), keys});
  }
  void finish_all_loads() {
    for (int round = 0; round < 10; ++round) {
      for (auto& [rank, keys] : std::map(loading_)) {
        if (!keys.empty()) finish_loads(rank);
      }
    }
  }
  uint64_t incarnation(Rank rank) const { return membership_.workers()[rank].incarnation; }
  int count(Rank rank, int layer = 0) const {
    return placement_ ? placement_->experts_on(rank, layer) : 0;
  }
  int total(Rank rank) const {
    int sum = 0;
    for (int layer = 0; layer < config_.moe_layers; ++layer) sum += count(rank, layer);
    return sum;
  }

  MembershipConfig config_;
  Membership membership_;
  std::optional<Placement> placement_;
  std::set<ExpertKey> parked_;
  std::map<Rank, std::set<ExpertKey>> loading_, held_;
  std::map<std::string, int> limits_;  // of memory, in experts
  std::set<Rank> masked_;
  std::vector<Rank> dismissed_;
  int publishes_ = 0;

 private:
  void carry_out(const MembershipEffect& effect) {
    std::visit([this](const auto& e) { apply(e); }, effect);
  }
  void apply(const Admit& admit) { masked_.erase(admit.rank); }
  // The memory of who carries out its orders one after the other is never exceeded.
  void apply(const Load& load) {
    loading_[load.rank].insert(load.keys.begin(), load.keys.end());
    if (load.rank == kCoordinator) return;
    std::set<ExpertKey> all = held_[load.rank];
    all.insert(loading_[load.rank].begin(), loading_[load.rank].end());
    const auto limit = limits_.find(membership_.workers()[load.rank].worker_id);
    if (limit != limits_.end()) {
      EXPECT_LE(static_cast<int>(all.size()), limit->second) << "rank " << load.rank;
    }
  }
  void apply(const Mask& mask) {
    masked_.insert(mask.rank);
    loading_[mask.rank].clear();
    held_[mask.rank].clear();
  }
  void apply(const Release& release) {
    for (const ExpertKey& key : release.keys) {
      EXPECT_FALSE(placement_ && placement_->holds(release.rank, key.moe_layer, key.expert))
          << "released while still in the published placement";
      held_[release.rank].erase(key);
    }
  }
  void apply(const Dismiss& dismiss) {
    dismissed_.push_back(dismiss.rank);
    loading_[dismiss.rank].clear();
    held_[dismiss.rank].clear();
  }
  void apply(const Publish& publish) {
    ++publishes_;
    const uint64_t before = placement_ ? placement_->version() : 0;
    EXPECT_EQ(publish.placement.version(), before + 1);
    placement_ = publish.placement;
    parked_ = std::set<ExpertKey>(publish.parked.begin(), publish.parked.end());
    for (int layer = 0; layer < config_.moe_layers; ++layer) {
      for (int e = 0; e < config_.experts; ++e) {
        if (parked_.contains({layer, e})) continue;
        for (const Rank rank : placement_->replicas(layer, e)) {
          EXPECT_FALSE(masked_.contains(rank)) << "rows would go to a lost rank";
          EXPECT_TRUE(held_[rank].contains({layer, e}))
              << "rows would go where the expert is not loaded";
        }
      }
    }
  }

  std::map<std::string, uint64_t> incarnations_;
};

}  // namespace brigade::runtime
