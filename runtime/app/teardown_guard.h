// The bound of an orderly end: when it takes longer than it may, or somebody asks once more meanwhile,
// the process ends at once and says so. One owner; its thread listens for the signals of the process,
// so nobody else may.
#pragma once

#include <atomic>
#include <thread>

#include "absl/time/time.h"
#include "runtime/app/shutdown_signals.h"

namespace brigade::runtime {

class TeardownGuard {
 public:
  // More than all waits on the way: 3 s for workers to go, 2 s for links, 10 s for each of two streams
  // of a GPU that does not answer.
  static constexpr absl::Duration kLimit = absl::Seconds(28);

  explicit TeardownGuard(ShutdownSignals& signals, absl::Duration limit = kLimit);
  // The end came in time.
  ~TeardownGuard();

 private:
  void watch(ShutdownSignals& signals, absl::Time deadline) const;

  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace brigade::runtime
