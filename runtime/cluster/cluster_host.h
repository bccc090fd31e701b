// The cluster of one coordinator, running: one control thread that feeds ClusterControl from a
// bounded queue of events, the data links, and the board of views. Construct, start(), stop() (may
// be called twice). The exchanges it makes must be gone before it is.
//
// The queue needs no rule for "full": a session has at most its start, one message and its end in
// it, a rank one loss a link, and parts of the coordinator's own loads are merged; sessions are
// bounded.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/exchange/exchange.h"
#include "expert_parallel/exchange/worker_links.h"
#include "expert_parallel/transport/transport.h"
#include "runtime/cluster/cluster_control.h"
#include "runtime/cluster/cluster_settings.h"
#include "runtime/cluster/cluster_status.h"
#include "runtime/cluster/control_session.h"
#include "runtime/cluster/local_experts_home.h"
#include "runtime/cluster/view_board.h"

namespace brigade::runtime {

class ClusterHost {
 public:
  // `home` outlives the host.
  ClusterHost(const ClusterSettings& settings,
              std::unique_ptr<expert_parallel::Transport> transport, LocalExpertsHome& home);
  ~ClusterHost();
  void start();
  void stop();

  // Control streams; any thread. RESOURCE_EXHAUSTED when too many are open. One message at a time,
  // see ControlSession.
  absl::StatusOr<uint64_t> opened(std::shared_ptr<ControlSession> stream);
  void said(uint64_t session, WorkerSays message);
  void ended(uint64_t session, const absl::Status& why);
  // From the home's thread.
  void local_loaded(std::vector<ExpertKey> keys, const absl::Status& status);

  // The exchange of the next microbatch: call it settings.microbatches times at most.
  absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>> make_exchange(
      kernels::Device& device, const expert_parallel::ExpertShard& shard, int max_rows);

  // A place to sleep for the step thread, where it drives the data links itself; see WorkerLinks.
  void sleep_until(kernels::Waker& waker, absl::Time until) { links_.sleep_until(waker, until); }

  // All workers are told to go; returns when their streams have ended, or at the deadline.
  void dismiss_workers(const std::string& reason, absl::Time deadline);

  // Any thread, at once. As of the control thread's last turn.
  ClusterStatus status() const;
  // Empty: every expert has a holder.
  std::string not_ready_reason() const;
  void set_control_address(const std::string& address);

 private:
  struct Opened {
    uint64_t session;
    std::shared_ptr<ControlSession> stream;
  };
  struct Said {
    uint64_t session;
    WorkerSays message;
  };
  struct Ended {
    uint64_t session;
    absl::Status why;
  };
  struct LinkLost {
    Rank rank;
    uint64_t incarnation;
    absl::Status why;
  };
  struct LocalLoaded {
    std::vector<ExpertKey> keys;
    absl::Status status;
  };
  struct DismissAll {
    std::string reason;
  };
  struct Event {
    absl::Time at;
    std::variant<Opened, Said, Ended, LinkLost, LocalLoaded, DismissAll> what;
  };
  using Happened = decltype(Event::what);

  void push(Happened what);
  void run();
  void handle(Event event);
  void take_snapshot();
  size_t queue_bound() const;

  const ClusterSettings settings_;
  LocalExpertsHome& home_;
  ViewBoard board_;
  expert_parallel::WorkerLinks links_;
  ClusterControl control_;  // control thread
  int made_exchanges_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<Event> events_;
  bool stopping_ = false;
  uint64_t next_session_ = 1;
  int open_sessions_ = 0;
  ClusterStatus snapshot_;
  std::shared_ptr<const Placement> placement_;
  std::string control_address_;
  std::thread thread_;
};

}  // namespace brigade::runtime
