#include "tests/cuda_emulation/runtime/stream_queue.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"

namespace brigade::cuda_emulation {
namespace {

std::atomic<unsigned> delay_us{
    static_cast<unsigned>(environment_number("BRIGADE_EMULATION_DELAY_US", 100))};
std::atomic<unsigned> delay_every{
    static_cast<unsigned>(environment_number("BRIGADE_EMULATION_DELAY_EVERY", 16))};

uint64_t mixed(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
  return value ^ (value >> 31);
}

}  // namespace

void set_stream_delay(unsigned longest_us, unsigned every) {
  delay_us = longest_us;
  delay_every = every;
}

void pass_event(EventState& event, uint64_t generation) {
  {
    std::lock_guard<std::mutex> lock(event.mutex);
    event.passed = std::max(event.passed, generation);
    event.passed_at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
  }
  event.changed.notify_all();
}

void wait_event(EventState& event, uint64_t generation) {
  std::unique_lock<std::mutex> lock(event.mutex);
  event.changed.wait(lock, [&] { return event.passed >= generation; });
}

StreamQueue::StreamQueue(int device, bool blocking, uint64_t number)
    : device_(device), blocking_(blocking), random_(mixed(number + 1)) {}

// The thread owns the queue: destroying a stream does not wait for its work, as on a device.
void StreamQueue::start(std::shared_ptr<StreamQueue> self) {
  std::thread([self] { self->run(); }).detach();
}

void StreamQueue::push(StreamWork work) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return queue_.size() < kMaxQueued; });
  if (gone_) {  // destroyed while somebody waits for all streams of the device
    lock.unlock();
    if (work.always) work.run();
    return;
  }
  queue_.push_back(std::move(work));
  ++pushed_;
  lock.unlock();
  queued_.notify_one();
}

void StreamQueue::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  queued_.notify_one();
}

bool StreamQueue::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_count_ == pushed_;
}

void StreamQueue::wait_idle() {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&, until = pushed_] { return done_count_ >= until; });
}

std::pair<std::shared_ptr<EventState>, uint64_t> StreamQueue::mark() {
  uint64_t generation;
  {
    std::lock_guard<std::mutex> lock(marks_->mutex);
    generation = ++marks_->recorded;
  }
  push({.run = [event = marks_, generation] { pass_event(*event, generation); }, .always = true});
  return {marks_, generation};
}

void StreamQueue::wait_for(std::shared_ptr<EventState> event, uint64_t generation) {
  push({.run = [event, generation] { wait_event(*event, generation); }, .always = true});
}

// The sleep is the injected fault: it moves streams against each other, so that a missing wait
// shows.
void StreamQueue::delay() {
  const unsigned every = delay_every;
  if (every == 0) return;
  random_ = mixed(random_ + schedule_seed() + 1);
  if (random_ % every != 0) return;
  std::this_thread::sleep_for(std::chrono::microseconds(mixed(random_) % (delay_us + 1)));
}

// Wakes nobody while it holds the lock: who wakes would only wait for it.
void StreamQueue::run() {
  prctl(PR_SET_TIMERSLACK, 1000);  // delays of microseconds
  DeviceMemory& memory = DeviceMemory::instance();
  bool accessible = false;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return !queue_.empty() || closed_; });
    if (queue_.empty()) {
      gone_ = true;
      return;
    }
    StreamWork work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (!work.always) {
      delay();
      if (!accessible) memory.begin_access();
      accessible = true;
    }
    if (work.always || device_error(device_) == cudaSuccess) work.run();
    work = {};  // what it holds ends outside the lock
    lock.lock();
    const bool last = queue_.empty();
    lock.unlock();
    if (last && accessible) {
      memory.end_access();
      accessible = false;
    }
    lock.lock();
    ++done_count_;
    lock.unlock();
    done_.notify_all();
    lock.lock();
  }
}

}  // namespace brigade::cuda_emulation
