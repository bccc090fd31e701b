// The events of one CUDA stream, and the host calls that wake whoever waits for them. An event of
// CUDA is reused once nobody holds its point any more: recording allocates no CUDA object in the
// long run.
//
// Thread: record() by the stream's thread; points by any; the host calls by CUDA's own thread.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/core/device.h"

namespace brigade::kernels::cuda {

// The first error of a stream, for all who hold a part of it.
class StickyError {
 public:
  absl::Status get() const;
  // Keeps the first one; returns `status`.
  absl::Status keep(absl::Status status);

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

// Free CUDA events, without timing. Outlives the stream for as long as a point is held.
class EventPool {
 public:
  ~EventPool();
  absl::StatusOr<cudaEvent_t> take();
  void give_back(cudaEvent_t event);

 private:
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
};

class StreamEvents {
 public:
  explicit StreamEvents(std::shared_ptr<StickyError> error);
  // Host calls that CUDA has not made yet are left to it.
  ~StreamEvents();
  StreamEvents(const StreamEvents&) = delete;
  StreamEvents& operator=(const StreamEvents&) = delete;

  // The point after everything enqueued on `stream` so far. Wakes `waker` (may be null) when it
  // passes.
  absl::StatusOr<Event> record(cudaStream_t stream, Waker* waker);

 private:
  struct Point;
  struct HostCall;
  static void make_call(void* call);

  const std::shared_ptr<StickyError> error_;
  const std::shared_ptr<EventPool> pool_;
  // Calls handed to CUDA, in order; made ones leave at the front.
  std::deque<std::unique_ptr<HostCall>> calls_;
};

}  // namespace brigade::kernels::cuda
