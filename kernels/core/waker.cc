#include "kernels/core/waker.h"

#include <chrono>

namespace brigade::kernels {

void Waker::wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
    // Under the lock: the sleeper may destroy the waker as soon as it has seen the wake.
    changed_.notify_one();
  }
}

bool Waker::wait_until(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (deadline == absl::InfiniteFuture()) {
    changed_.wait(lock, [this] { return woken_; });
  } else {
    changed_.wait_until(lock, absl::ToChronoTime(deadline), [this] { return woken_; });
  }
  const bool woken = woken_;
  woken_ = false;
  return woken;
}

}  // namespace brigade::kernels
