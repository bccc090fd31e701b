// When a process that ended is started again: exponential back-off, and a bound on restarts within
// a window. Pure: the caller brings the clock. One object a process.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace brigade::launcher {

enum class RestartPolicy { kNever, kOnFailure, kAlways };

struct RestartRules {
  RestartPolicy policy = RestartPolicy::kOnFailure;
  absl::Duration first_delay = absl::Milliseconds(500);  // doubles each time
  absl::Duration longest_delay = absl::Seconds(30);
  int max_restarts = 10;  // within `window`
  absl::Duration window = absl::Minutes(10);
};

// How a process ended: by its own exit, or by a signal.
struct ProcessEnd {
  int exit_code = 0;
  int signal = 0;  // 0: it exited

  bool failed() const { return signal != 0 || exit_code != 0; }
  // Bad flags or files, which starting again cannot cure.
  bool refused() const { return signal == 0 && exit_code == 2; }
  std::string text() const;  // "exit code 3", "signal 9 (Killed)"
};

class RestartSchedule {
 public:
  explicit RestartSchedule(const RestartRules& rules) : rules_(rules) {}

  struct Decision {
    std::optional<absl::Duration> delay;  // nullopt: not again
    bool gave_up = false;                 // because of the bound or a refusal
    int restarts_in_window = 0;           // this one included
  };
  // The process started at `started` has ended at `now`. One that ran for longer than the longest
  // delay begins at the first delay again.
  Decision ended(const ProcessEnd& end, absl::Time started, absl::Time now);

  // As new: an operator asked for a start.
  void reset();

 private:
  const RestartRules rules_;
  std::deque<absl::Time> restarts_;  // at most max_restarts
  int streak_ = 0;                   // restarts since the process last ran for long
};

}  // namespace brigade::launcher
