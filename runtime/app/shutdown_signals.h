// SIGTERM and SIGINT as something to wait for. Blocked in every thread of the process, so the
// object is made before any thread; the main thread alone waits.
#pragma once

#include "absl/time/time.h"

namespace brigade::runtime {

class ShutdownSignals {
 public:
  ShutdownSignals();

  // From here on the end of stdin counts as one SIGTERM: a parent that holds the other end of the
  // pipe takes this process with it, however it dies. Reads and drops what arrives. Call once.
  void watch_stdin();

  // True when a signal came before the deadline. Each call takes one.
  bool wait_until(absl::Time deadline);
};

}  // namespace brigade::runtime
