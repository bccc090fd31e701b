#include "runtime/app/teardown_guard.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "absl/time/clock.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

constexpr int kAskedTo = 0, kFault = 1;

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  _exit(code);
}

}  // namespace

TeardownGuard::TeardownGuard(ShutdownSignals& signals, absl::Duration limit)
    : thread_([this, &signals, deadline = absl::Now() + limit] { watch(signals, deadline); }) {}

// A signal to ourselves wakes the thread; nobody waits for signals after it.
TeardownGuard::~TeardownGuard() {
  over_ = true;
  kill(getpid(), SIGTERM);
  thread_.join();
}

void TeardownGuard::watch(ShutdownSignals& signals, absl::Time deadline) const {
  const bool asked = signals.wait_until(deadline);
  if (over_) return;
  if (asked) {
    spdlog::warn("another signal: stopping at once");
    leave(kAskedTo);
  }
  spdlog::error("stopping takes too long: leaving as it is");
  leave(kFault);
}

}  // namespace brigade::runtime
