#include "kernels/core/waker.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace brigade::kernels {

void Waker::wake() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    woken_ = true;
    // Under the lock: the sleeper may destroy the waker as soon as it has seen the wake.
    changed_.notify_one();
    if (const int eventfd = std::exchange(eventfd_, -1); eventfd >= 0) {
      const uint64_t one = 1;
      // Fails only when the counter is full, and then it is readable already.
      [[maybe_unused]] const ssize_t written = write(eventfd, &one, sizeof(one));
    }
  }
}

bool Waker::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(woken_, false);
}

bool Waker::divert_to(int eventfd) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(woken_, false)) return false;
  eventfd_ = eventfd;
  return true;
}

bool Waker::end_divert() {
  std::lock_guard<std::mutex> lock(mutex_);
  eventfd_ = -1;
  return std::exchange(woken_, false);
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
