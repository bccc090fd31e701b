// The coordinator's side of the control plane without threads, clocks or wires: what workers say
// and what happens to them goes in, with its time; the membership's rules decide; links, sessions,
// the view board and the coordinator's own experts are told. Control thread only.
//
// Order. Effects are carried out in the order in which the rules give them. A release (or a
// dismissal) waits in its rank's queue until no row travels under a view that names the expert
// there; later loads of the same rank wait behind it. Nothing else waits.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "expert_parallel/exchange/worker_links.h"
#include "runtime/cluster/cluster_settings.h"
#include "runtime/cluster/cluster_status.h"
#include "runtime/cluster/control_session.h"
#include "runtime/cluster/local_experts_home.h"
#include "runtime/cluster/view_board.h"

namespace brigade::runtime {

class ClusterControl {
 public:
  // All outlive this.
  ClusterControl(const ClusterSettings& settings, expert_parallel::WorkerLinks& links,
                 ViewBoard& board, LocalExpertsHome& home, absl::Time now);

  // Sessions have ids that are never used again.
  void opened(uint64_t session, std::shared_ptr<ControlSession> stream, absl::Time now);
  void said(uint64_t session, WorkerSays message, absl::Time now);
  void ended(uint64_t session, const absl::Status& why, absl::Time now);
  // Evidence from the data plane.
  void link_lost(Rank rank, uint64_t incarnation, const absl::Status& why, absl::Time now);
  // The coordinator's own experts; on an error they are asked for again later.
  void local_loaded(std::vector<ExpertKey> keys, const absl::Status& status, absl::Time now);
  // The coordinator stops: all workers are dismissed, nobody is declared lost any more.
  void dismiss_all(const std::string& reason, absl::Time now);
  // Whatever is due. Returns when something will be, at the latest.
  absl::Time tick(absl::Time now);

  bool has_sessions() const { return !sessions_.empty(); }
  // Without what can be read elsewhere at any time: links, exchanges, holders.
  ClusterStatus status(absl::Time now) const;
  std::shared_ptr<const Placement> placement() const { return placement_; }

 private:
  struct Session {
    std::shared_ptr<ControlSession> stream;
    absl::Time opened_at, last_heard;
    Rank rank = kCoordinator;  // once registered
    bool registered = false, ending = false;
    // Of one whose name another process holds, until it is known whether that one lives.
    std::optional<Registration> contender;
    absl::Time holder_heard;  // first, since then
  };
  // Something to do for a rank, when its turn comes.
  struct Order {
    enum class Kind { kLoad, kRelease, kDismiss } kind;
    std::vector<ExpertKey> keys;
    uint64_t after_view = 0;  // acknowledged by all exchanges
    absl::Time not_before = absl::InfinitePast();
  };
  struct Slot {
    uint64_t session = 0;  // 0: none
    uint64_t incarnation = 0;
    bool connected = false;   // rows may go there
    bool dismissing = false;  // drained; the rules have forgotten it
    absl::Time admitted_at;
    std::deque<Order> orders;  // bounded: one entry an effect, cleared with the rank
    std::map<int64_t, std::vector<ExpertKey>> loading;  // by command; the same bound
    Registration about;
    absl::Time since;  // it joined
    WorkerBeat beat;
    int64_t resident_bytes = 0;
    int64_t experts = 0;  // in the placement, over all layers
    std::string last_loss, load_failure;
  };

  // cluster_control.cc: what comes in.
  void on(uint64_t id, Session& session, Registration message);
  void on(uint64_t id, Session& session, LinkOffer message);
  void on(uint64_t id, Session& session, LoadReport message);
  void on(uint64_t id, Session& session, LoadFailure message);
  void on(uint64_t id, Session& session, WorkerBeat message);
  void on(uint64_t id, Session& session, LeaveWish message);
  absl::Status check_report(const LoadReport& report);
  absl::Status check_registration(const Registration& message) const;
  absl::Status register_worker(uint64_t id, Session& session, const Registration& message);
  void refuse(Session& session, const absl::Status& status);
  void end_session(Session& session, const absl::Status& status);
  void suspect(Rank rank, Evidence evidence, const std::string& detail);
  Session* session_of(Rank rank);
  Slot& slot(Rank rank) { return slots_[rank]; }
  void log(const std::string& line) const;
  static absl::Time link_deadline();

  // cluster_effects.cc: what the rules want.
  absl::Status submit(const MembershipEvent& event);
  void apply(const Admit& effect);
  void apply(const Load& effect);
  void apply(const Publish& effect);
  void apply(const Mask& effect);
  void apply(const Release& effect);
  void apply(const Dismiss& effect);
  void unlink(Rank rank);
  void finish_dismissal(Rank rank);
  void settle(absl::Time now);
  void publish_view();
  void run_orders(Rank rank, std::deque<Order>& orders);
  bool may_run(Rank rank, const Order& order);
  void carry_out(Rank rank, Order order);
  uint64_t view_to_come() const { return board_.number() + (view_changed_ ? 1 : 0); }

  // cluster_names.cc: a name is one process's.
  Slot* other_holder(const Registration& message);
  void contend(Session& session, const Registration& message, const Slot& holder);
  void refuse_contenders(Rank holder, absl::Time now);
  bool admit_contender();

  // cluster_watch.cc: what time brings.
  void watch_sessions(absl::Time now);
  void watch_replies(absl::Time now);
  std::string not_ready_reason() const;

  const ClusterSettings settings_;
  expert_parallel::WorkerLinks& links_;
  ViewBoard& board_;
  LocalExpertsHome& home_;
  Membership membership_;
  std::map<uint64_t, Session> sessions_;
  std::map<Rank, Slot> slots_;
  std::deque<Order> local_orders_;
  std::deque<MembershipEvent> followups_;  // of effects; handled before anything else
  std::shared_ptr<const Placement> placement_;
  std::vector<uint64_t> checksums_;  // by layer and expert; 0: not known yet
  bool view_changed_ = false;
  bool stopping_ = false;
  uint64_t joining_session_ = 0;  // whose registration the rules are looking at
  int64_t next_command_ = 1, beat_ = 0;
  absl::Time now_, join_deadline_, next_beat_, promised_, blame_from_;
  int64_t joined_ = 0, lost_ = 0, refused_ = 0;
};

}  // namespace brigade::runtime
