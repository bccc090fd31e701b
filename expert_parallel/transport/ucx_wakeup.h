// One descriptor to sleep on for all workers of a transport: readable when any of theirs is. One
// owner.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace brigade::expert_parallel::ucx {

class Wakeup {
 public:
  Wakeup() = default;
  ~Wakeup();
  Wakeup(const Wakeup&) = delete;
  Wakeup& operator=(const Wakeup&) = delete;

  absl::Status start();
  int fd() const { return epoll_; }
  absl::Status add(int fd);
  void remove(int fd);
  void sleep(absl::Duration at_most) const;

 private:
  int epoll_ = -1;
};

}  // namespace brigade::expert_parallel::ucx
