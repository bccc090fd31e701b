// Stand-ins for the runtime's calls about events.
#include <cuda_runtime_api.h>

#include <map>

#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

using namespace brigade::cuda_emulation;

// CUDA's headers only name it: a handle, nothing more.
struct CUevent_st {
  int unused = 0;
};

namespace {

class EventRegistry {
 public:
  cudaEvent_t add(std::shared_ptr<EventState> state) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto* const handle = new CUevent_st{};
    events_[handle] = std::move(state);
    return handle;
  }
  std::shared_ptr<EventState> find(cudaEvent_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = events_.find(event);
    return found == events_.end() ? nullptr : found->second;
  }
  bool remove(cudaEvent_t event) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.erase(event) == 0) return false;
    retired_.emplace_back(event);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<cudaEvent_t, std::shared_ptr<EventState>> events_;  // guarded by mutex_
  std::vector<std::unique_ptr<CUevent_st>>
      retired_;  // so that no address comes back; guarded by mutex_
};

EventRegistry& events() {
  static auto* const registry = new EventRegistry;  // outlives every thread
  return *registry;
}

}  // namespace

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  BRIGADE_RETURN_UNLESS_USABLE();
  constexpr unsigned kKnown =
      cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
  if (out == nullptr || (flags & ~kKnown) != 0) return result(cudaErrorInvalidValue);
  auto state = std::make_shared<EventState>();
  state->device = current_device();
  state->timed = (flags & cudaEventDisableTiming) == 0;
  *out = events().add(std::move(state));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t driver = driver_state(); driver != cudaSuccess) return result(driver);
  return result(events().remove(event) ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto state = events().find(event);
  if (state == nullptr || !stream_exists(stream) || stream_device(stream) != state->device) {
    return result(cudaErrorInvalidResourceHandle);
  }
  const bool captured = is_capturing(stream);
  uint64_t generation;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    state->captured = captured;
    if (captured) return cudaSuccess;  // orders nodes of the one stream, which are in order anyway
    generation = ++state->recorded;
  }
  return result(submit(stream, {.run = [=] { pass_event(*state, generation); }, .always = true}));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (const cudaError_t forbidden = forbid_during_capture(); forbidden != cudaSuccess)
    return result(forbidden);
  const auto state = events().find(event);
  if (state == nullptr) return result(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> lock(state->mutex);
  if (state->captured) return result(cudaErrorCapturedEvent);
  if (state->passed < state->recorded) return result(cudaErrorNotReady);
  return result(device_error(state->device));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (const cudaError_t forbidden = forbid_during_capture(); forbidden != cudaSuccess)
    return result(forbidden);
  const auto state = events().find(event);
  if (state == nullptr) return result(cudaErrorInvalidResourceHandle);
  uint64_t generation;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    if (state->captured) return result(cudaErrorCapturedEvent);
    generation = state->recorded;
  }
  wait_event(*state, generation);
  return result(device_error(state->device));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto from = events().find(start), to = events().find(end);
  if (milliseconds == nullptr) return result(cudaErrorInvalidValue);
  if (from == nullptr || to == nullptr || !from->timed || !to->timed) {
    return result(cudaErrorInvalidResourceHandle);
  }
  int64_t passed_at[2];
  for (int i = 0; i < 2; ++i) {
    EventState& state = i == 0 ? *from : *to;
    std::lock_guard<std::mutex> lock(state.mutex);
    if (state.recorded == 0) return result(cudaErrorInvalidResourceHandle);
    if (state.passed < state.recorded) return result(cudaErrorNotReady);
    passed_at[i] = state.passed_at_ns;
  }
  *milliseconds = static_cast<float>(static_cast<double>(passed_at[1] - passed_at[0]) * 1e-6);
  return cudaSuccess;
}

// An event recorded in a capture orders that stream only; another stream cannot join it here.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto state = events().find(event);
  if (state == nullptr || !stream_exists(stream)) return result(cudaErrorInvalidResourceHandle);
  if (flags != 0) return result(cudaErrorInvalidValue);
  uint64_t generation;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    if (state->captured) return is_capturing(stream) ? cudaSuccess : result(cudaErrorNotSupported);
    generation = state->recorded;
  }
  if (is_capturing(stream)) return result(cudaErrorStreamCaptureUnsupported);
  return result(submit(stream, {.run = [=] { wait_event(*state, generation); }, .always = true}));
}
