#include "launcher/wait_ready.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/wait_line.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);
constexpr absl::Duration kProbeLimit = absl::Seconds(2);

// Shows what the server says about its loading. Returns its reason for not being ready.
std::string show_progress(Client& client, WaitLine& line) {
  const auto status = client.status(absl::Now() + kProbeLimit);
  if (!status.ok()) return std::string(status.status().message());
  const v1::LoadProgress& loading = status->loading();
  const double fraction =
      loading.total() > 0 ? static_cast<double>(loading.done()) / loading.total() : -1;
  line.show(status->has_loading() ? "the server is loading its model: " + loading.stage()
                                  : status->reason(),
            fraction);
  return status->reason();
}

}  // namespace

absl::Status wait_until_ready(Client& client, absl::Time deadline,
                              const std::atomic<bool>& interrupted) {
  WaitLine line(true);
  std::string reason;
  while (true) {
    const auto ready = client.healthy("", std::min(deadline, absl::Now() + kProbeLimit));
    if (ready.ok() && *ready) return absl::OkStatus();
    if (ready.ok()) {
      reason = show_progress(client, line);
    } else if (ready.status().code() == absl::StatusCode::kUnavailable ||
               ready.status().code() == absl::StatusCode::kDeadlineExceeded) {
      reason = std::string(ready.status().message());
      line.show("waiting for the server");
    } else {
      return ready.status();
    }
    if (interrupted) return absl::CancelledError("interrupted");
    if (absl::Now() + kInterval >= deadline) {
      return absl::UnavailableError(absl::StrCat("the server is not ready: ", reason));
    }
    absl::SleepFor(kInterval);
  }
}

}  // namespace brigade::launcher
