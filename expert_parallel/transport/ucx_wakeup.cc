#include "expert_parallel/transport/ucx_wakeup.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace brigade::expert_parallel::ucx {
namespace {

absl::Status system_error(const char* call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

}  // namespace

Wakeup::~Wakeup() {
  if (epoll_ >= 0) close(epoll_);
}

absl::Status Wakeup::start() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  return epoll_ >= 0 ? absl::OkStatus() : system_error("epoll_create1");
}

absl::Status Wakeup::add(int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0 ? absl::OkStatus()
                                                           : system_error("epoll_ctl");
}

void Wakeup::remove(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

void Wakeup::sleep(absl::Duration at_most) const {
  pollfd descriptor = {epoll_, POLLIN, 0};
  poll(&descriptor, 1, static_cast<int>(absl::ToInt64Milliseconds(at_most) + 1));
}

}  // namespace brigade::expert_parallel::ucx
