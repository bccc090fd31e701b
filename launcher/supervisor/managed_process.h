// One process of the plan over its lives: started, read, watched, started again by its schedule,
// stopped in order. Lives on the supervisor's io_context and thread; callbacks run there too.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/supervisor/launch_plan.h"
#include "launcher/supervisor/restart_schedule.h"

namespace boost::asio {
class io_context;
}

namespace brigade::launcher {

class StateFolder;

enum class ProcessState {
  kWaiting,  // for another process
  kRunning,
  kBackingOff,  // ended; starts again after a delay
  kStopping,    // asked to end
  kExited,      // ended and does not start again
  kFailed,      // as kExited, but it should have run
};
const char* to_string(ProcessState state);

class ManagedProcess {
 public:
  struct Callbacks {
    std::function<void()> changed;  // the state is another one
    std::function<void(const std::string& sentence)> note;
    std::function<void(const std::string& line)> output;  // after it was logged
  };

  ManagedProcess(boost::asio::io_context& io, const PlannedProcess& planned,
                 const RestartRules& rules, StateFolder& folder, Callbacks callbacks);
  ~ManagedProcess();

  // The command line of the next start, remote shell included; the plan's own until then.
  void set_command(std::vector<std::string> argv) { command_ = std::move(argv); }

  void start();
  // It goes on, but once it has ended it does not start again by itself.
  void let_end();
  // SIGTERM to a local process, end of stdin to a remote one; SIGKILL after the plan's grace. It
  // does not start again.
  void stop();
  void kill();  // at once, and it does not start again
  // stop(), then start(), whatever state it is in. A new schedule of restarts.
  void restart();

  const PlannedProcess& planned() const { return planned_; }
  ProcessState state() const { return state_; }
  // No process is there and none will start by itself.
  bool settled() const;
  pid_t pid() const;  // -1: none runs
  int starts() const { return starts_; }
  int restarts() const { return starts_ > 0 ? starts_ - 1 : 0; }
  absl::Time started() const { return started_; }
  const std::optional<ProcessEnd>& last_end() const { return last_end_; }
  const std::string& failure() const { return failure_; }  // why it is kFailed

 private:
  struct Life;

  void set_state(ProcessState state);
  void read_output(std::shared_ptr<Life> life);
  bool read_chunk(Life& life);
  void take_output(Life& life, size_t bytes);
  void take_line(const std::string& line);
  void await_exit(std::shared_ptr<Life> life);
  void drain_output(Life& life);
  void on_exit(std::shared_ptr<Life> life);
  void start_again_or_not(const ProcessEnd& end);
  void back_off(absl::Duration delay, int number, const std::string& why);

  struct Log;
  struct Timers;
  boost::asio::io_context& io_;
  const PlannedProcess planned_;
  const RestartRules rules_;
  StateFolder& folder_;
  const Callbacks callbacks_;
  std::vector<std::string> command_;
  RestartSchedule schedule_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<Timers> timers_;
  std::shared_ptr<Life> life_;  // null: none runs
  ProcessState state_ = ProcessState::kWaiting;
  bool start_when_stopped_ = false;
  bool may_start_again_ = true;  // by the schedule
  int starts_ = 0;
  absl::Time started_;
  std::optional<ProcessEnd> last_end_;
  std::string failure_;
};

}  // namespace brigade::launcher
