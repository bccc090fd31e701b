// Starts the processes of a plan in order, watches them, and stops them in order: the coordinator
// first, which finishes its streams and dismisses its workers, then the workers. One thread runs
// the io_context; every method belongs to it, and so do the observer's calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "launcher/supervisor/launch_plan.h"
#include "launcher/supervisor/managed_process.h"
#include "launcher/supervisor/readiness.h"

namespace brigade::launcher {

// One line of `brigade ps`.
struct ProcessReport {
  std::string name, role, host, state;
  int64_t pid = -1;
  int64_t restarts = 0;
  double uptime_seconds = 0;
  bool ready = false;
  std::string detail;    // why not ready, how it ended last
  double fraction = -1;  // of loading
  int64_t starts = 0;
};

class SupervisorObserver {
 public:
  virtual ~SupervisorObserver() = default;
  virtual void on_change() = 0;  // of any report
  virtual void on_ready() = 0;   // once: everything is up
  virtual void on_note(const std::string& sentence) = 0;
  virtual void on_output(const std::string& process, const std::string& line) = 0;
  // Nothing runs any more. OK: it was asked to stop, or the coordinator ended in order.
  virtual void on_end(const absl::Status& status) = 0;
};

class Supervisor {
 public:
  using ProbeMaker = std::function<std::unique_ptr<ReadinessProbe>(const Endpoint& api)>;

  Supervisor(boost::asio::io_context& io, const LaunchPlan& plan, StateFolder& folder,
             ProbeMaker make_probe, SupervisorObserver& observer);
  ~Supervisor();

  void start();
  void stop();  // in order; a second call changes nothing
  void kill();  // at once

  // INVALID_ARGUMENT for a name that is not there; FAILED_PRECONDITION while it stops. The
  // coordinator takes its workers along.
  absl::Status restart(const std::string& name);

  std::vector<ProcessReport> report() const;
  // Calls back once after asking the coordinator anew, or after a second without an answer.
  void refresh(std::function<void()> done);

  // How long stop() takes at most.
  absl::Duration stop_limit() const;
  bool was_ready() const { return was_ready_; }
  const LaunchPlan& plan() const { return plan_; }  // ports filled in once they are known

 private:
  enum class Phase { kIdle, kOpening, kRunning, kStoppingCoordinator, kStoppingWorkers, kEnded };
  struct Entry;
  struct Timers;

  void schedule_advance();
  void advance();
  void note_new_lives();
  void advance_opening();
  void watch_failures();
  void advance_stopping();
  void begin_stop(const absl::Status& status, bool start_again);
  void end_or_start_again();
  bool learn_ports();
  void prepare(Entry& entry);
  void poll_ports();
  void poll_readiness();
  void take_readiness(const Readiness& readiness, const std::vector<int>& lives);
  void check_ready();
  bool is_ready(const Entry& entry) const;
  std::string detail_of(const Entry& entry) const;
  Entry& coordinator() { return *entries_.front(); }
  bool all_settled() const;

  boost::asio::io_context& io_;
  LaunchPlan plan_;
  StateFolder& folder_;
  const ProbeMaker make_probe_;
  SupervisorObserver& observer_;
  std::vector<std::unique_ptr<Entry>> entries_;  // as plan_.processes
  std::unique_ptr<Timers> timers_;
  std::unique_ptr<ReadinessProbe> probe_;
  Readiness readiness_;
  std::vector<std::function<void()>> refreshed_;
  Phase phase_ = Phase::kIdle;
  bool advance_scheduled_ = false;
  bool ports_known_ = false;
  bool was_ready_ = false;
  bool start_again_ = false;
  bool at_once_ = false;
  absl::Status end_status_;
};

}  // namespace brigade::launcher
