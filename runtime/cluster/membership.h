// Who is in the cluster and which experts live where, as a state machine without I/O: events in,
// effects out. Detectors bring evidence; only this decides. Every failure story is therefore a unit
// test. Driven by one control thread, which carries out the effects in order.
//
// Rank slots are never renumbered. Each slot has an incarnation, which changes with its process; an
// event that names an old one is ignored. An expert whose last holder is lost is parked until somebody
// has loaded it; its rows wait, they are never dropped.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/routing/placement.h"

namespace brigade::runtime {

using expert_parallel::kCoordinator;
using expert_parallel::Placement;
using expert_parallel::Rank;

struct ExpertKey {
  int moe_layer = 0;
  int expert = 0;
  auto operator<=>(const ExpertKey&) const = default;
};

enum class Evidence {
  kControlStreamLost,
  kTransportError,
  kHeartbeatMissed,
  kReplyOverdue,
  kWrongData
};
const char* evidence_name(Evidence evidence);

// Events.
struct WorkerJoined {
  std::string worker_id;      // stable over restarts of one configured worker
  uint64_t incarnation = 0;
  int64_t max_experts =
      std::numeric_limits<int64_t>::max();  // that its memory takes, over all layers
};
struct ExpertsLoaded {        // also from the coordinator itself (rank kCoordinator)
  Rank rank = 0;
  uint64_t incarnation = 0;
  std::vector<ExpertKey> keys;
};
struct ExpertsNotLoaded {  // by a worker: it stays, with what it has, and is given no more
  Rank rank = 0;
  uint64_t incarnation = 0;
  std::vector<ExpertKey> keys;
};
struct WorkerSuspected {
  Rank rank = 0;
  uint64_t incarnation = 0;
  Evidence evidence = Evidence::kControlStreamLost;
  std::string detail;
};
struct WorkerLeaving {        // asked to drain; stays in use until its experts live elsewhere
  Rank rank = 0;
  uint64_t incarnation = 0;
};
struct JoinDeadlinePassed {}; // start with whoever is there
using MembershipEvent = std::variant<WorkerJoined, ExpertsLoaded, ExpertsNotLoaded, WorkerSuspected,
                                     WorkerLeaving, JoinDeadlinePassed>;

// Effects.
struct Admit {                // answer the worker's registration
  Rank rank = 0;
  uint64_t incarnation = 0;
};
struct Load {                 // rank prepares these experts in the background
  Rank rank = 0;
  uint64_t incarnation = 0;
  std::vector<ExpertKey> keys;
};
struct Publish {              // takes effect between two steps
  Placement placement;        // experts without a holder have an empty entry and are listed in `parked`
  std::vector<ExpertKey> parked;
};
struct Mask {                 // at once: nothing more is sent there, its outstanding rows are sent again
  Rank rank = 0;
  uint64_t incarnation = 0;
  std::string reason;
};
struct Release {              // after the publish before it: these experts are no longer used there
  Rank rank = 0;
  uint64_t incarnation = 0;
  std::vector<ExpertKey> keys;
};
struct Dismiss {              // a drained worker may exit
  Rank rank = 0;
  uint64_t incarnation = 0;
};
using MembershipEffect = std::variant<Admit, Load, Publish, Mask, Release, Dismiss>;

struct MembershipConfig {
  int moe_layers = 0;
  int experts = 0;            // per layer
  int expected_workers = 0;   // experts are handed out when so many joined, or at the join deadline
  int max_ranks = 64;
};

class Membership {
 public:
  explicit Membership(const MembershipConfig& config);

  // RESOURCE_EXHAUSTED when no slot is free for a new worker; nothing has changed then. A slot is free
  // while it was never taken; when all were, those of lost workers are given away too.
  absl::StatusOr<std::vector<MembershipEffect>> handle(const MembershipEvent& event);

  enum class WorkerState { kEmpty, kActive, kLeaving, kLost };
  struct Worker {
    std::string worker_id;
    uint64_t incarnation = 0;
    WorkerState state = WorkerState::kEmpty;
    int64_t max_experts = 0;
    bool takes_more = true;            // false: a load has failed
    std::set<ExpertKey> present = {};  // once it has carried out all that it was told
    bool has_room() const {
      return takes_more && static_cast<int64_t>(present.size()) < max_experts;
    }
    int present_of(int moe_layer) const;
  };
  const std::vector<Worker>& workers() const { return workers_; }
  uint64_t version() const { return version_; }
  int parked_experts() const;
  int active_workers() const;
  bool started() const { return started_; }

 private:
  struct Expert {
    std::vector<Rank> holders;          // loaded and usable, in order of preference
    Rank loading = kNobody;             // who has been asked to load it
  };
  static constexpr Rank kNobody = -2;
  using Effects = std::vector<MembershipEffect>;
  using KeysByRank = std::vector<std::vector<ExpertKey>>;  // rank + 1: the coordinator's first

  absl::Status on(const WorkerJoined& event, Effects* effects);
  absl::Status on(const ExpertsLoaded& event, Effects* effects);
  absl::Status on(const ExpertsNotLoaded& event, Effects* effects);
  absl::Status on(const WorkerSuspected& event, Effects* effects);
  absl::Status on(const WorkerLeaving& event, Effects* effects);
  absl::Status on(const JoinDeadlinePassed& event, Effects* effects);

  bool usable(Rank rank) const;         // active: may be given experts
  bool current(Rank rank, uint64_t incarnation) const;
  Expert& at(const ExpertKey& key) { return experts_[size_t(key.moe_layer) * config_.experts + key.expert]; }
  void start(Effects* effects);
  void rebalance(Effects* effects);
  std::vector<Rank> usable_ranks() const;
  int allowance(Rank rank, int moe_layer, int64_t left) const;
  Rank owner(const Expert& expert) const;
  void assign_layer(int moe_layer, std::vector<int64_t>* left, KeysByRank* loads);
  void ask(Rank rank, const ExpertKey& key, KeysByRank* loads);
  Rank rank_with_room() const;
  void release(Rank rank, std::vector<ExpertKey> keys, Effects* effects);
  void publish(Effects* effects);
  void release_surplus(Effects* effects);
  void dismiss_drained(Effects* effects);

  const MembershipConfig config_;
  std::vector<Worker> workers_;         // by rank slot
  std::vector<Expert> experts_;         // [moe_layers * experts]
  uint64_t version_ = 0;
  bool started_ = false;
  bool short_of_room_ = false;  // some expert is not where an even share would put it
};

}  // namespace brigade::runtime
