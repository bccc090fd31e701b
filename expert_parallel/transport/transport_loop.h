// The progress thread: it owns a transport, sleeps in epoll until the transport, another thread or
// a deadline needs it, and gives its client a turn after each wake. start() and stop() from the
// owner; stop() may be called twice; wake() from any thread. A transport that fails to arm ends the
// loop and the client is told.
//
// One other thread may be its guest: it takes turns itself when it has something to send or nothing
// else to do, which saves two thread switches an exchange. Turns exclude one another. While the
// guest comes by, it alone watches the transport's descriptor; once it has stayed away for
// kGuestPatience the progress thread watches again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "expert_parallel/transport/event_fd.h"
#include "expert_parallel/transport/transport.h"
#include "kernels/core/waker.h"

namespace brigade::expert_parallel {

class LoopClient : public TransportListener {
 public:
  // On the progress thread, after arrivals were handed out. Returns when it wants the next turn at
  // the latest; InfinitePast() for at once.
  virtual absl::Time on_turn() = 0;
  virtual void on_loop_failed(const absl::Status& status) = 0;
};

class TransportLoop {
 public:
  // Both outlive the loop. The transport's listener becomes the client.
  TransportLoop(Transport& transport, LoopClient& client);
  ~TransportLoop();

  void start();
  // Ends the thread; the transport is then the caller's again. A guest inside sleeps on, on its
  // waker alone.
  void stop();
  void wake() { woken_.signal(); }
  int wake_fd() const { return woken_.fd(); }  // an eventfd; writing to it is a wake
  // Runs a task on the progress thread (or a restless guest) and waits for its end; on the caller's
  // thread while the loop does not run. For the control plane (links, experts), never per step.
  // DEADLINE_EXCEEDED: it has not begun and never will. RESOURCE_EXHAUSTED: too many callers.
  absl::Status call(std::function<void()> task, absl::Time deadline);

  // Guest. A turn now; left to the progress thread if that is in the middle of one.
  void guest_turn();
  // Guest. Takes turns until the waker is woken (true) or the deadline is there. As
  // waker.wait_until() once the loop has ended.
  bool guest_sleep(kernels::Waker& waker, absl::Time deadline);

 private:
  struct Task {
    std::function<void()> work;
    enum { kWaiting, kRunning, kDone, kAbandoned } state = kWaiting;
  };
  static constexpr size_t kMaxTasks = 64;
  static constexpr absl::Duration kGuestPatience = absl::Milliseconds(2);
  void run_tasks();
  void run();
  absl::Status turn();
  absl::Time look_after_guest(absl::Time next);
  void work_as_guest();
  void guest_leaves();
  void fail(const absl::Status& why);

  Transport& transport_;
  LoopClient& client_;
  EventFd woken_, guest_woken_;
  int epoll_ = -1, guest_epoll_ = -1;
  std::atomic<bool> stopping_{false};

  std::mutex turn_mutex_;  // held by the thread whose turn it is; guards what follows
  bool alive_ = false;     // between start() and the loop's end
  bool guest_watches_ = false, guest_asleep_ = false;
  bool ticking_ = false;  // the progress thread looks after the guest now and then
  uint64_t guest_visits_ = 0, visits_seen_ = 0;

  std::mutex tasks_mutex_;
  std::condition_variable task_moved_;
  std::deque<std::shared_ptr<Task>> tasks_;  // at most kMaxTasks
  bool running_ = false;                     // tasks are taken by the loop
  std::thread thread_;
};

}  // namespace brigade::expert_parallel
