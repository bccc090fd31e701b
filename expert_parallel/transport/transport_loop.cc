#include "expert_parallel/transport/transport_loop.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace

TransportLoop::TransportLoop(Transport& transport, LoopClient& client)
    : transport_(transport), client_(client), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  CHECK(epoll_ >= 0);
  transport_.set_listener(&client_);
  watch(epoll_, woken_.fd());
  watch(epoll_, transport_.event_fd());
}

TransportLoop::~TransportLoop() {
  stop();
  close(epoll_);
}

void TransportLoop::start() {
  CHECK(!thread_.joinable());
  stopping_ = false;
  {
    std::lock_guard<std::mutex> lock(tasks_mutex_);
    running_ = true;
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
    if (const absl::Status status = turn(); !status.ok()) {
      client_.on_loop_failed(status);
      break;
    }
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
  // A task never waits, so its end is near.
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

absl::Status TransportLoop::turn() {
  woken_.clear();  // before the work: a wake during it must not be lost
  while (transport_.progress()) {
  }
  run_tasks();
  const absl::Time next = client_.on_turn();
  if (next == absl::InfinitePast() || stopping_) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool armed, transport_.arm());
  return armed ? sleep_until(next) : absl::OkStatus();
}

absl::Status TransportLoop::sleep_until(absl::Time deadline) {
  int64_t timeout_ms = -1;
  if (deadline != absl::InfiniteFuture()) {
    // Rounded up, so that a deadline a few microseconds away does not become a busy loop.
    const absl::Duration left = deadline - absl::Now() + absl::Microseconds(999);
    timeout_ms = std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 3600 * 1000);
  }
  epoll_event events[2];
  if (epoll_wait(epoll_, events, 2, static_cast<int>(timeout_ms)) < 0 && errno != EINTR) {
    return absl::InternalError(absl::StrCat("epoll_wait: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace brigade::expert_parallel
