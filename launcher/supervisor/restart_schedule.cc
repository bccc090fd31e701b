#include "launcher/supervisor/restart_schedule.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {

std::string ProcessEnd::text() const {
  if (signal != 0) return absl::StrCat("signal ", signal, " (", strsignal(signal), ")");
  return absl::StrCat("exit code ", exit_code);
}

RestartSchedule::Decision RestartSchedule::ended(const ProcessEnd& end, absl::Time started,
                                                 absl::Time now) {
  Decision decision;
  const bool wanted = rules_.policy == RestartPolicy::kAlways ||
                      (rules_.policy == RestartPolicy::kOnFailure && end.failed());
  if (!wanted) {
    decision.gave_up = end.failed();
    return decision;
  }
  if (end.refused()) {
    decision.gave_up = true;
    return decision;
  }
  while (!restarts_.empty() && now - restarts_.front() >= rules_.window) restarts_.pop_front();
  if (static_cast<int>(restarts_.size()) >= rules_.max_restarts) {
    decision.gave_up = true;
    decision.restarts_in_window = static_cast<int>(restarts_.size());
    return decision;
  }
  if (now - started > rules_.longest_delay) streak_ = 0;
  absl::Duration delay = rules_.first_delay;
  for (int i = 0; i < streak_ && delay < rules_.longest_delay; ++i) delay *= 2;
  ++streak_;
  restarts_.push_back(now);
  decision.delay = std::min(delay, rules_.longest_delay);
  decision.restarts_in_window = static_cast<int>(restarts_.size());
  return decision;
}

void RestartSchedule::reset() {
  restarts_.clear();
  streak_ = 0;
}

}  // namespace brigade::launcher
