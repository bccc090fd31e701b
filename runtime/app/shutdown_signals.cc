#include "runtime/app/shutdown_signals.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <thread>

#include "absl/time/clock.h"
#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

sigset_t shutdown_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignals::ShutdownSignals() {
  const sigset_t set = shutdown_set();
  CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  std::signal(SIGPIPE, SIG_IGN);
}

void ShutdownSignals::watch_stdin() {
  // Ends with the process: a blocked read cannot be called off, and holds nothing.
  std::thread([] {
    char dropped[256];
    ssize_t count = 0;
    do {
      count = read(STDIN_FILENO, dropped, sizeof(dropped));
    } while (count > 0 || (count < 0 && errno == EINTR));
    kill(getpid(), SIGTERM);
  }).detach();
}

bool ShutdownSignals::wait_until(absl::Time deadline) {
  const sigset_t set = shutdown_set();
  while (true) {
    const absl::Duration left =
        std::clamp(deadline - absl::Now(), absl::ZeroDuration(), absl::Hours(1));
    const timespec timeout = absl::ToTimespec(left);
    if (sigtimedwait(&set, nullptr, &timeout) > 0) return true;
    if (absl::Now() >= deadline)
      return false;  // else another signal's handler ran, or the hour is over
  }
}

}  // namespace brigade::runtime
