// The progress thread: it owns a transport, sleeps in epoll until the transport, another thread or a
// deadline needs it, and gives its client a turn after each wake. start() and stop() from the owner;
// stop() may be called twice; wake() from any thread. A transport that fails to arm ends the loop and
// the client is told.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "expert_parallel/transport/event_fd.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::expert_parallel {

class LoopClient : public TransportListener {
 public:
  // On the progress thread, after arrivals were handed out. Returns when it wants the next turn at the
  // latest; InfinitePast() for at once.
  virtual absl::Time on_turn() = 0;
  virtual void on_loop_failed(const absl::Status& status) = 0;
};

class TransportLoop {
 public:
  // Both outlive the loop. The transport's listener becomes the client.
  TransportLoop(Transport& transport, LoopClient& client);
  ~TransportLoop();

  void start();
  void stop();  // ends the thread; the transport is then the caller's again
  void wake() { woken_.signal(); }

 private:
  void run();
  absl::Status turn();
  absl::Status sleep_until(absl::Time deadline);

  Transport& transport_;
  LoopClient& client_;
  EventFd woken_;
  int epoll_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace brigade::expert_parallel
