// Which streams exist, and what their captures forbid.
#include <unistd.h>

#include <map>

#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"
#include "tests/cuda_emulation/runtime/stream_registry.h"

namespace brigade::cuda_emulation {

StreamRegistry& StreamRegistry::instance() {
  static auto* const registry = new StreamRegistry;  // outlives every thread
  return *registry;
}

unsigned long long this_thread() {
  static std::atomic<unsigned long long> next{1};
  static thread_local const unsigned long long number = next++;
  return number;
}

std::shared_ptr<StreamQueue> StreamRegistry::make_queue(int device, bool blocking) {
  auto queue = std::make_shared<StreamQueue>(device, blocking, next_number_++);
  queue->start(queue);
  return queue;
}

cudaStream_t StreamRegistry::create(int device, bool blocking) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  auto* const handle = new CUstream_st{};
  streams_[handle] = make_queue(device, blocking);
  return handle;
}

cudaError_t StreamRegistry::destroy(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return cudaErrorInvalidResourceHandle;
  found->second->close();
  streams_.erase(found);
  retired_.emplace_back(stream);
  return cudaSuccess;
}

std::shared_ptr<StreamQueue> StreamRegistry::find(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  if (stream == nullptr || stream == cudaStreamLegacy) {
    std::shared_ptr<StreamQueue>& queue = default_streams_[current_device()];
    if (queue == nullptr) queue = make_queue(current_device(), true);
    return queue;
  }
  const auto found = streams_.find(stream);
  return found == streams_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<StreamQueue>> StreamRegistry::of_device(int device) {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::vector<std::shared_ptr<StreamQueue>> all;
  if (default_streams_[device] != nullptr) all.push_back(default_streams_[device]);
  for (const auto& [handle, queue] : streams_) {
    if (queue->device() == device) all.push_back(queue);
  }
  return all;
}

// The default stream waits for the blocking streams of its device, and they for it.
void StreamRegistry::order_with_default(StreamQueue& queue) {
  if (!queue.blocking()) return;
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  StreamQueue* const by_default = default_streams_[queue.device()].get();
  if (by_default == nullptr) return;
  if (by_default != &queue) {
    const auto [event, generation] = by_default->mark();
    queue.wait_for(event, generation);
    return;
  }
  for (const auto& [handle, other] : streams_) {
    if (other->device() != queue.device() || !other->blocking()) continue;
    const auto [event, generation] = other->mark();
    queue.wait_for(event, generation);
  }
}

cudaError_t StreamRegistry::forbid_during_capture() {
  std::lock_guard<std::recursive_mutex> lock(mutex_);
  cudaError_t outcome = cudaSuccess;
  for (const auto& [handle, queue] : streams_) {
    StreamQueue::Capture* const capture = queue->capture.get();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->owner != this_thread())
      continue;
    capture->invalid = true;
    outcome = cudaErrorStreamCaptureUnsupported;
  }
  return outcome;
}

std::shared_ptr<StreamQueue> find_stream(cudaStream_t stream) {
  return StreamRegistry::instance().find(stream);
}
std::vector<std::shared_ptr<StreamQueue>> streams_of(int device) {
  return StreamRegistry::instance().of_device(device);
}
cudaError_t forbid_during_capture() { return StreamRegistry::instance().forbid_during_capture(); }

cudaError_t submit(cudaStream_t stream, StreamWork work) {
  StreamRegistry& registry = StreamRegistry::instance();
  const std::shared_ptr<StreamQueue> queue = registry.find(stream);
  if (queue == nullptr) return cudaErrorInvalidResourceHandle;
  {
    std::lock_guard<std::recursive_mutex> lock(registry.mutex());
    if (queue->capture != nullptr) {
      if (queue->capture->invalid) return cudaErrorStreamCaptureInvalidated;
      queue->capture->nodes.push_back(std::move(work));
      return cudaSuccess;
    }
  }
  if (queue->blocking()) {
    if (stream == nullptr && registry.forbid_during_capture() != cudaSuccess) {
      return cudaErrorStreamCaptureImplicit;
    }
    registry.order_with_default(*queue);
  }
  if (work.on_submit) work.on_submit();
  queue->push(std::move(work));
  return cudaSuccess;
}

bool stream_exists(cudaStream_t stream) { return find_stream(stream) != nullptr; }
int stream_device(cudaStream_t stream) {
  const auto queue = find_stream(stream);
  return queue == nullptr ? -1 : queue->device();
}
bool is_capturing(cudaStream_t stream) {
  const auto queue = find_stream(stream);
  std::lock_guard<std::recursive_mutex> lock(StreamRegistry::instance().mutex());
  return queue != nullptr && queue->capture != nullptr;
}

}  // namespace brigade::cuda_emulation
