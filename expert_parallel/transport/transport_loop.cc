#include "expert_parallel/transport/transport_loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

void sleep_on(int epoll, absl::Time deadline) {
  int64_t timeout_ms = -1;
  if (deadline != absl::InfiniteFuture()) {
    // Rounded up, so that a deadline a few microseconds away does not become a busy loop.
    const absl::Duration left = deadline - absl::Now() + absl::Microseconds(999);
    timeout_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 3600 * 1000);
  }
  epoll_event events[2];
  CHECK(epoll_wait(epoll, events, 2, static_cast<int>(timeout_ms)) >= 0 || errno == EINTR);
}

}  // namespace

TransportLoop::TransportLoop(Transport& transport, LoopClient& client)
    : transport_(transport),
      client_(client),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      guest_epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CHECK(epoll_ >= 0 && guest_epoll_ >= 0);
  transport_.set_listener(&client_);
  watch(epoll_, woken_.fd());
  watch(epoll_, transport_.event_fd());
  watch(guest_epoll_, guest_woken_.fd());
  watch(guest_epoll_, transport_.event_fd());
}

TransportLoop::~TransportLoop() {
  stop();
  close(epoll_);
  close(guest_epoll_);
}

void TransportLoop::start() {
  CHECK(!thread_.joinable());
  stopping_ = false;
  {
    std::lock_guard<std::mutex> lock(tasks_mutex_);
    running_ = true;
  }
  {
    std::lock_guard<std::mutex> turn(turn_mutex_);
    alive_ = true;
  }
  thread_ = std::thread([this] { run(); });
}

void TransportLoop::stop() {
  stopping_ = true;
  wake();
  if (thread_.joinable()) thread_.join();
}

void TransportLoop::run() {
  while (!stopping_) {
    if (!turn().ok()) break;
  }
  {
    std::lock_guard<std::mutex> turn(turn_mutex_);
    alive_ = false;
    if (std::exchange(guest_watches_, false)) watch(epoll_, transport_.event_fd());
  }
  run_tasks();
  {
    std::lock_guard<std::mutex> lock(tasks_mutex_);
    running_ = false;
  }
  run_tasks();  // what came in between
}

absl::Status TransportLoop::call(std::function<void()> task, absl::Time deadline) {
  auto waiting = std::make_shared<Task>();
  waiting->work = std::move(task);
  std::unique_lock<std::mutex> lock(tasks_mutex_);
  if (!running_) {
    lock.unlock();
    waiting->work();
    return absl::OkStatus();
  }
  if (tasks_.size() >= kMaxTasks) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMaxTasks, " calls wait for the transport's thread"));
  }
  tasks_.push_back(waiting);
  wake();
  const auto moved_on = [&] { return waiting->state != Task::kWaiting; };
  if (!task_moved_.wait_until(lock, absl::ToChronoTime(deadline), moved_on)) {
    waiting->state = Task::kAbandoned;
    return absl::DeadlineExceededError("the transport's thread did not take the call in time");
  }
  // A task waits for nobody, or no longer than this call would: its end is near.
  task_moved_.wait(lock, [&] { return waiting->state == Task::kDone; });
  return absl::OkStatus();
}

void TransportLoop::run_tasks() {
  std::unique_lock<std::mutex> lock(tasks_mutex_);
  while (!tasks_.empty()) {
    const std::shared_ptr<Task> task = std::move(tasks_.front());
    tasks_.pop_front();
    if (task->state == Task::kAbandoned) continue;
    task->state = Task::kRunning;
    lock.unlock();
    task->work();
    lock.lock();
    task->state = Task::kDone;
    task_moved_.notify_all();
  }
}

// The caller holds the turn.
void TransportLoop::fail(const absl::Status& why) {
  if (!std::exchange(alive_, false)) return;
  client_.on_loop_failed(why);
}

absl::Status TransportLoop::turn() {
  woken_.clear();  // before the work: a wake during it must not be lost
  absl::Time next;
  {
    std::lock_guard<std::mutex> turn(turn_mutex_);
    if (!alive_) return absl::UnavailableError("the guest saw the transport fail");
    while (transport_.progress()) {
    }
    run_tasks();
    next = client_.on_turn();
    if (next == absl::InfinitePast() || stopping_) return absl::OkStatus();
    const absl::StatusOr<bool> armed = transport_.arm();
    if (!armed.ok()) {
      fail(armed.status());
      return armed.status();
    }
    if (!*armed) return absl::OkStatus();
    next = look_after_guest(next);
  }
  sleep_on(epoll_, next);
  return absl::OkStatus();
}

// When the progress thread must be back. It ticks while the guest comes and goes, stops when the
// guest has been asleep for a tick, and watches by itself when the guest has been away for one.
absl::Time TransportLoop::look_after_guest(absl::Time next) {
  if (!guest_watches_) return next;
  const bool came = std::exchange(visits_seen_, guest_visits_) != guest_visits_;
  if (!came) {
    ticking_ = false;
    if (guest_asleep_) return next;
    guest_watches_ = false;
    watch(epoll_, transport_.event_fd());
    return next;
  }
  ticking_ = true;
  return std::min(next, absl::Now() + kGuestPatience);
}

// The progress thread may be in its longest sleep and watching nothing.
void TransportLoop::guest_leaves() {
  if (std::exchange(ticking_, true)) return;
  wake();
}

// What a turn of the guest does. The caller holds the turn.
void TransportLoop::work_as_guest() {
  if (!std::exchange(guest_watches_, true)) {
    CHECK(epoll_ctl(epoll_, EPOLL_CTL_DEL, transport_.event_fd(), nullptr) == 0);
  }
  ++guest_visits_;
  do {
    while (transport_.progress()) {
    }
  } while (client_.on_turn() == absl::InfinitePast());
}

void TransportLoop::guest_turn() {
  std::unique_lock<std::mutex> turn(turn_mutex_, std::try_to_lock);
  if (!turn.owns_lock()) return wake();
  if (!alive_) return;
  work_as_guest();
  guest_leaves();
}

bool TransportLoop::guest_sleep(kernels::Waker& waker, absl::Time deadline) {
  std::unique_lock<std::mutex> turn(turn_mutex_);
  while (alive_) {
    work_as_guest();
    if (waker.take()) {
      guest_leaves();
      return true;
    }
    const absl::StatusOr<bool> armed = transport_.arm();
    if (!armed.ok()) {
      fail(armed.status());
      wake();
      break;
    }
    if (!*armed) {
      // Perhaps for long: a peer that stopped while it wrote lets nobody sleep until its link is
      // closed, which is a call from the control plane.
      run_tasks();
      if (absl::Now() >= deadline) {
        guest_leaves();
        return false;
      }
      turn.unlock();
      std::this_thread::yield();
      turn.lock();
      continue;
    }
    const bool pending = !waker.divert_to(guest_woken_.fd());
    if (!pending) {
      guest_asleep_ = true;
      turn.unlock();
      sleep_on(guest_epoll_, deadline);
      turn.lock();
      guest_asleep_ = false;
    }
    const bool woken = pending || waker.end_divert();
    if (woken && !pending) guest_woken_.clear();
    if (woken || absl::Now() >= deadline) {
      guest_leaves();
      return woken;
    }
  }
  turn.unlock();
  return waker.wait_until(deadline);
}

}  // namespace brigade::expert_parallel
