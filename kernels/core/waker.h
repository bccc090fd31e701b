// One sleeping place for a thread that waits for "anything new": events of streams, arrivals of a
// transport, new requests. wake() may be called from any thread, any number of times; wakes are not
// lost (a wake before the wait makes the next wait return at once).
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace brigade::kernels {

class Waker {
 public:
  void wake();
  // Sleeps until woken or until the deadline. True when woken. Consumes all pending wakes.
  bool wait_until(absl::Time deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
};

}  // namespace brigade::kernels
