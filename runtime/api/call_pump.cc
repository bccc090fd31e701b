#include "runtime/api/call_pump.h"

#include <utility>

namespace brigade::runtime {

void CallPump::start() {
  thread_ = std::thread([this] { run(); });
}

void CallPump::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CallPump::wake(std::shared_ptr<Call> call) {
  if (call->queued_.exchange(true)) return;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    queue_.push_back(std::move(call));
    if (queue_.size() > 1) return;  // the thread is on its way
  }
  changed_.notify_one();
}

void CallPump::run() {
  std::deque<std::shared_ptr<Call>> batch;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      // Wakes for every call; the owner's stop() is the other way out.
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      batch.swap(queue_);
    }
    for (const std::shared_ptr<Call>& call : batch) {
      call->queued_ = false;  // before pumping: what comes now queues it again
      call->pump();
    }
    batch.clear();
  }
}

}  // namespace brigade::runtime
