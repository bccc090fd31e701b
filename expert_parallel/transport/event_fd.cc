#include "expert_parallel/transport/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

EventFd::EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { CHECK(fd_ >= 0); }

EventFd::~EventFd() { close(fd_); }

void EventFd::signal() {
  const uint64_t one = 1;
  // Fails only when the counter is full, and then it is readable already.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

void EventFd::clear() {
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(fd_, &count, sizeof(count));
}

}  // namespace brigade::expert_parallel
