// Stand-ins for the runtime's calls about streams, their captures and graphs.
#include <cuda_runtime_api.h>

#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/handles.h"
#include "tests/cuda_emulation/runtime/stream_registry.h"

using namespace brigade::cuda_emulation;

// What the headers only name.
struct CUgraph_st {
  std::vector<StreamWork> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<StreamWork>> nodes;
};

namespace {

// A call that needs the stream's state as it is now ends its capture.
cudaError_t refuse_if_capturing(cudaStream_t stream) {
  if (!is_capturing(stream)) return cudaSuccess;
  std::lock_guard<std::recursive_mutex> lock(StreamRegistry::instance().mutex());
  const auto queue = find_stream(stream);
  if (queue != nullptr && queue->capture != nullptr) queue->capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (out == nullptr || flags > cudaStreamNonBlocking) return result(cudaErrorInvalidValue);
  *out = StreamRegistry::instance().create(current_device(), flags != cudaStreamNonBlocking);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* out) {
  return cudaStreamCreateWithFlags(out, cudaStreamDefault);
}

// Lower numbers go first, as on a device; here they change nothing.
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int) {
  return cudaStreamCreateWithFlags(out, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t driver = driver_state(); driver != cudaSuccess) return result(driver);
  return result(StreamRegistry::instance().destroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto queue = find_stream(stream);
  if (queue == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = refuse_if_capturing(stream); refused != cudaSuccess)
    return result(refused);
  queue->wait_idle();
  return result(device_error(queue->device()));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto queue = find_stream(stream);
  if (queue == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t refused = refuse_if_capturing(stream); refused != cudaSuccess)
    return result(refused);
  return result(queue->idle() ? device_error(queue->device()) : cudaErrorNotReady);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (function == nullptr) return result(cudaErrorInvalidValue);
  return result(submit(stream, {.run = [=] { run_host_function(function, data); }}));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (stream == nullptr || stream == cudaStreamLegacy)
    return result(cudaErrorStreamCaptureUnsupported);
  const auto queue = find_stream(stream);
  if (queue == nullptr) return result(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::recursive_mutex> lock(StreamRegistry::instance().mutex());
  if (queue->capture != nullptr) return result(cudaErrorIllegalState);
  queue->capture = std::make_unique<StreamQueue::Capture>();
  queue->capture->mode = mode;
  queue->capture->owner = this_thread();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto queue = find_stream(stream);
  if (queue == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (out == nullptr) return result(cudaErrorInvalidValue);
  *out = nullptr;
  std::lock_guard<std::recursive_mutex> lock(StreamRegistry::instance().mutex());
  if (queue->capture == nullptr) return result(cudaErrorIllegalState);
  if (queue->capture->mode != cudaStreamCaptureModeRelaxed &&
      queue->capture->owner != this_thread()) {
    return result(cudaErrorStreamCaptureWrongThread);
  }
  const std::unique_ptr<StreamQueue::Capture> capture = std::move(queue->capture);
  if (capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  *out = new CUgraph_st{std::move(capture->nodes)};
  live_handles<cudaGraph_t>().add(*out);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const auto queue = find_stream(stream);
  if (queue == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (status == nullptr) return result(cudaErrorInvalidValue);
  std::lock_guard<std::recursive_mutex> lock(StreamRegistry::instance().mutex());
  *status = queue->capture == nullptr ? cudaStreamCaptureStatusNone
            : queue->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (out == nullptr || !live_handles<cudaGraph_t>().has(graph))
    return result(cudaErrorInvalidValue);
  *out = new CUgraphExec_st{std::make_shared<const std::vector<StreamWork>>(graph->nodes)};
  live_handles<cudaGraphExec_t>().add(*out);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (!live_handles<cudaGraphExec_t>().has(executable)) return result(cudaErrorInvalidValue);
  StreamWork work;
  work.run = [nodes = executable->nodes] {
    for (const StreamWork& node : *nodes) node.run();
  };
  work.on_submit = [nodes = executable->nodes] {
    for (const StreamWork& node : *nodes) {
      if (node.on_submit) node.on_submit();
    }
  };
  ++count().graph_launches;
  return result(submit(stream, std::move(work)));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (!live_handles<cudaGraphExec_t>().remove(executable)) return result(cudaErrorInvalidValue);
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!live_handles<cudaGraph_t>().remove(graph)) return result(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
