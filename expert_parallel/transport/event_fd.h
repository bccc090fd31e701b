// A descriptor that becomes readable when somebody signals it: lets one thread wait for other
// threads and for sockets at once. signal() from any thread; clear() by the thread that waits.
#pragma once

namespace brigade::expert_parallel {

class EventFd {
 public:
  EventFd();
  ~EventFd();
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;

  int fd() const { return fd_; }
  void signal();
  void clear();

 private:
  int fd_;
};

}  // namespace brigade::expert_parallel
