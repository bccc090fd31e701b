#include "kernels/cuda/stream_events.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/event_state.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::kernels::cuda {
namespace {

// CUDA makes no host call after an error on the GPU: who waits looks for one this often.
constexpr absl::Duration kLookForErrors = absl::Milliseconds(50);

}  // namespace

absl::Status StickyError::get() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

absl::Status StickyError::keep(absl::Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = status;
  return status;
}

EventPool::~EventPool() {
  for (cudaEvent_t event : free_) cudaEventDestroy(event);
}

absl::StatusOr<cudaEvent_t> EventPool::take() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      cudaEvent_t const event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  RETURN_IF_ERROR(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                              "cudaEventCreateWithFlags", "without timing"));
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(event);
}

// Has passed when its host call was made, not when the GPU says so: then nobody can see it pass and
// destroy the waker before the call has woken it.
struct StreamEvents::Point final : Event::State {
  Point(std::shared_ptr<StickyError> stream_error, std::shared_ptr<EventPool> pool,
        cudaEvent_t cuda_event)
      : error(std::move(stream_error)), pool(std::move(pool)), event(cuda_event) {}
  ~Point() override { pool->give_back(event); }

  bool ready() override {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (passed) return true;
    }
    return look_for_error();
  }

  absl::Status wait_until(absl::Time deadline) override {
    while (!ready()) {
      std::unique_lock<std::mutex> lock(mutex);
      const absl::Time now = absl::Now();
      if (!passed && now >= deadline) {
        return absl::DeadlineExceededError("an event of a CUDA stream was not reached in time");
      }
      changed.wait_until(lock, absl::ToChronoTime(std::min(deadline, now + kLookForErrors)),
                         [this] { return passed; });
    }
    return error->get();
  }

  void pass() {
    std::lock_guard<std::mutex> lock(mutex);
    passed = true;
    changed.notify_all();
    if (waker != nullptr) std::exchange(waker, nullptr)->wake();
  }

  // After an error on the GPU the host call is not made: the point counts as passed and its waker
  // is let go. Not under the lock: CUDA's thread takes it in pass(), and a call of CUDA may have to
  // wait for that thread.
  bool look_for_error() {
    const cudaError_t found = cudaEventQuery(event);
    if (found == cudaSuccess) return false;
    if (found == cudaErrorNotReady) {
      cudaGetLastError();  // where it was noted, for whoever asks next
      return false;
    }
    error->keep(cuda_status(found, "cudaEventQuery", "work of the stream")).IgnoreError();
    std::lock_guard<std::mutex> lock(mutex);
    passed = true;
    waker = nullptr;
    return true;
  }

  const std::shared_ptr<StickyError> error;
  const std::shared_ptr<EventPool> pool;
  const cudaEvent_t event;
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  Waker* waker = nullptr;
};

struct StreamEvents::HostCall {
  std::shared_ptr<Point> point;
  std::atomic<bool> made{false};
};

StreamEvents::StreamEvents(std::shared_ptr<StickyError> error)
    : error_(std::move(error)), pool_(std::make_shared<EventPool>()) {}

// A call that was not made may still be: the stream was given up with work on it, or it faulted.
// Such calls are kept until the process ends.
StreamEvents::~StreamEvents() {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<HostCall>>;
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& call : calls_) {
    if (!call->made.load(std::memory_order_acquire)) kept->push_back(std::move(call));
  }
}

void StreamEvents::make_call(void* call) {
  auto& host_call = *static_cast<HostCall*>(call);
  host_call.point->pass();
  host_call.made.store(true, std::memory_order_release);
}

absl::StatusOr<Event> StreamEvents::record(cudaStream_t stream, Waker* waker) {
  while (!calls_.empty() && calls_.front()->made.load(std::memory_order_acquire)) {
    calls_.pop_front();
  }
  ASSIGN_OR_RETURN(cudaEvent_t const event, pool_->take());
  auto call = std::make_unique<HostCall>();
  call->point = std::make_shared<Point>(error_, pool_, event);
  call->point->waker = waker;
  RETURN_IF_ERROR(error_->keep(cuda_status(cudaEventRecord(event, stream), "cudaEventRecord")));
  RETURN_IF_ERROR(error_->keep(
      cuda_status(cudaLaunchHostFunc(stream, &make_call, call.get()), "cudaLaunchHostFunc")));
  Event point(call->point);
  calls_.push_back(std::move(call));
  return point;
}

}  // namespace brigade::kernels::cuda
