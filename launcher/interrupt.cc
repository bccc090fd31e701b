#include "launcher/interrupt.h"

#include <unistd.h>
#include <csignal>

#include "launcher/exit_codes.h"

namespace brigade::launcher {
namespace {

std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (interrupted.exchange(true)) _exit(kInterrupted);
}

}  // namespace

const std::atomic<bool>& interrupt_flag() {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    return sigaction(SIGINT, &action, nullptr) == 0 && sigaction(SIGTERM, &action, nullptr) == 0;
  }();
  (void)installed;
  return interrupted;
}

}  // namespace brigade::launcher
