// One sleeping place for a thread that waits for "anything new": events of streams, arrivals of a
// transport, new requests. wake() may be called from any thread, any number of times; wakes are not
// lost (a wake before the wait makes the next wait return at once). All else by the one sleeper.
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
  // Consumes pending wakes without sleeping; true when there were any.
  bool take();

  // For a sleeper that waits on descriptors instead: from divert_to() to end_divert() a wake also
  // writes to this eventfd, once. False: a wake was pending and is consumed, nothing is diverted.
  bool divert_to(int eventfd);
  // True when woken since; then the eventfd may be readable, and is the caller's to clear.
  bool end_divert();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;
  int eventfd_ = -1;
};

}  // namespace brigade::kernels
