#include "kernels/core/device_cpu_async.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/event_state.h"
#include "kernels/core/shadow_heap.h"
#include "kernels/core/status.h"

namespace brigade::kernels {
namespace {

constexpr std::chrono::seconds kEnqueueTimeout{60};

struct AsyncEvent final : Event::State {
  bool ready() override {
    std::lock_guard<std::mutex> lock(mutex);
    return passed;
  }
  absl::Status wait_until(absl::Time deadline) override {
    std::unique_lock<std::mutex> lock(mutex);
    const auto is_passed = [this] { return passed; };
    if (deadline == absl::InfiniteFuture()) {
      changed.wait(lock, is_passed);
    } else if (!changed.wait_until(lock, absl::ToChronoTime(deadline), is_passed)) {
      return absl::DeadlineExceededError("an event of a cpu_async stream was not reached in time");
    }
    return status;
  }
  // Wakes under the lock: who has seen the event pass may destroy the waker.
  void pass(absl::Status reached_with, Waker* waker) {
    std::lock_guard<std::mutex> lock(mutex);
    passed = true;
    status = std::move(reached_with);
    changed.notify_all();
    if (waker != nullptr) waker->wake();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  absl::Status status;
};

class AsyncStream final : public CpuAsyncStream {
 public:
  AsyncStream(Device& device, ShadowHeap& heap, int threads)
      : device_(device), heap_(heap), threads_(threads), runner_([this] { run(); }) {}

  // Work already enqueued still runs.
  ~AsyncStream() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    runner_.join();
  }

  Device& device() const override { return device_; }

  absl::Status enqueue(Work work) override {
    std::unique_lock<std::mutex> lock(mutex_);
    const bool has_room = changed_.wait_for(lock, kEnqueueTimeout,
                                            [this] { return queue_.size() < kMaxQueued; });
    if (!has_room) {
      return absl::DeadlineExceededError(
          absl::StrCat("a cpu_async stream had ", kMaxQueued, " pieces of work queued for too long"));
    }
    if (!error_.ok()) return error_;
    queue_.push_back(std::move(work));
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<void*> shadow(const void* address, size_t bytes, const char* what) override {
    void* found = heap_.shadow(address, bytes);
    if (found != nullptr) return found;
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is not memory of the device cpu_async (", bytes, " bytes)"));
  }

  absl::Status copy_to_device(void* device_to, const void* host_from, size_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(void* const to, shadow(device_to, bytes, "device_to"));
    return copy(to, host_from, bytes);
  }
  absl::Status copy_to_host(void* host_to, const void* device_from, size_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(void* const from, shadow(device_from, bytes, "device_from"));
    std::memset(host_to, 0xFF, bytes);  // a host that does not wait reads NaN
    return copy(host_to, from, bytes);
  }
  absl::Status copy_on_device(void* device_to, const void* device_from, size_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(void* const to, shadow(device_to, bytes, "device_to"));
    ASSIGN_OR_RETURN(void* const from, shadow(device_from, bytes, "device_from"));
    return copy(to, from, bytes);
  }
  absl::Status fill_bytes(void* device_to, uint8_t value, size_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(void* const to, shadow(device_to, bytes, "device_to"));
    return enqueue([=](ThreadPool&) {
      std::memset(to, value, bytes);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<Event> record(Waker* waker) override {
    auto state = std::make_shared<AsyncEvent>();
    RETURN_IF_ERROR(enqueue([this, state, waker](ThreadPool&) {
      state->pass(sticky_error(), waker);
      return absl::OkStatus();
    }));
    return Event(std::move(state));
  }

  absl::Status synchronize(absl::Time deadline) override {
    ASSIGN_OR_RETURN(const Event event, record(nullptr));
    return event.wait_until(deadline);
  }

 private:
  absl::Status copy(void* to, const void* from, size_t bytes) {
    return enqueue([=](ThreadPool&) {
      std::memmove(to, from, bytes);
      return absl::OkStatus();
    });
  }

  absl::Status sticky_error() {
    std::lock_guard<std::mutex> lock(mutex_);
    return error_;
  }

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      absl::Status status = work(threads_);
      work = nullptr;  // what it captured dies outside the lock
      lock.lock();
      if (error_.ok()) error_ = std::move(status);
      changed_.notify_all();
    }
  }

  Device& device_;
  ShadowHeap& heap_;
  ThreadPool threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;    // guarded by mutex_
  absl::Status error_;        // guarded by mutex_; the first one
  bool stopping_ = false;     // guarded by mutex_
  std::thread runner_;        // last: it uses all of the above
};

class AsyncDevice final : public Device {
 public:
  AsyncDevice(std::unique_ptr<ShadowHeap> heap, int threads)
      : heap_(std::move(heap)), threads_(threads) {}
  DeviceKind kind() const override { return DeviceKind::kCpuAsync; }
  std::string name() const override { return "cpu_async"; }
  int num_threads() const override { return threads_; }
  absl::StatusOr<void*> allocate(size_t bytes) override { return heap_->allocate(bytes); }
  void free(void* data, size_t) override { heap_->free(data); }
  size_t bytes_in_use() const override { return heap_->bytes_in_use(); }
  absl::StatusOr<std::unique_ptr<Stream>> create_stream() override {
    return std::make_unique<AsyncStream>(*this, *heap_, threads_);
  }

 private:
  const std::unique_ptr<ShadowHeap> heap_;
  const int threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> create_cpu_async_device(int threads) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShadowHeap> heap, ShadowHeap::create());
  return std::make_unique<AsyncDevice>(std::move(heap), threads);
}

}  // namespace brigade::kernels
