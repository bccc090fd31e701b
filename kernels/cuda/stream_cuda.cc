#include "kernels/cuda/stream_cuda.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/fast_math.h"

namespace brigade::kernels::cuda {
namespace {

// A process that ends has two of them, and is given half a minute in all.
constexpr absl::Duration kTeardown = absl::Seconds(5);

struct GraphState final : Graph::State {
  explicit GraphState(cudaGraphExec_t instantiated) : graph(instantiated) {}
  ~GraphState() override { cudaGraphExecDestroy(graph); }
  const cudaGraphExec_t graph;
};

// Of the recording, which is of no use once it was made executable.
class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  cudaGraph_t graph = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Stream>> StreamImpl::create(CudaDevice& device, bool fast) {
  cudaStream_t stream = nullptr;
  RETURN_IF_ERROR(cuda_status(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                              "cudaStreamCreateWithFlags", "GPU ", device.ordinal()));
  std::unique_ptr<StreamImpl> created(new StreamImpl(device, stream));
  if (fast) {
    ASSIGN_OR_RETURN(created->fast_math_, FastMath::create(device, stream));
  }
  return created;
}

StreamImpl::StreamImpl(CudaDevice& device, cudaStream_t stream)
    : device_(device), stream_(stream), error_(std::make_shared<StickyError>()), events_(error_) {}

StreamImpl::~StreamImpl() {
  if (capturing_) end_capture().IgnoreError();
  if (!synchronize(absl::Now() + kTeardown).ok()) {
    fast_math_.release();  // closing the library would wait for what does not end
  }
  fast_math_.reset();
  cudaStreamDestroy(stream_);  // returns at once; what is left ends with the work
}

void* StreamImpl::native() const {
  cudaSetDevice(device_.ordinal());  // cheap when it is current; an error shows at the launch
  return stream_;
}

int StreamImpl::record_for(void* event) {
  std::lock_guard<std::mutex> lock(recording_mutex_);
  cudaSetDevice(device_.ordinal());
  return cudaEventRecord(static_cast<cudaEvent_t>(event), stream_);
}

absl::Status StreamImpl::usable() const {
  RETURN_IF_ERROR(error_->get());
  return cuda_status(cudaSetDevice(device_.ordinal()), "cudaSetDevice", device_.ordinal());
}

// Sticky, unless the call was to be recorded: then nothing has run, and the recording is what
// fails.
absl::Status StreamImpl::keep(absl::Status status) {
  return capturing_ ? status : error_->keep(std::move(status));
}

absl::Status StreamImpl::copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                              const char* way) {
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(usable());
  return keep(cuda_status(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync", way,
                          ", ", bytes, " bytes"));
}

absl::Status StreamImpl::copy_to_device(void* device_to, const void* host_from, size_t bytes) {
  return copy(device_to, host_from, bytes, cudaMemcpyHostToDevice, "host to device");
}

absl::Status StreamImpl::copy_to_host(void* host_to, const void* device_from, size_t bytes) {
  return copy(host_to, device_from, bytes, cudaMemcpyDeviceToHost, "device to host");
}

absl::Status StreamImpl::copy_on_device(void* device_to, const void* device_from, size_t bytes) {
  return copy(device_to, device_from, bytes, cudaMemcpyDeviceToDevice, "on the device");
}

absl::Status StreamImpl::fill_bytes(void* device_to, uint8_t value, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(usable());
  return keep(cuda_status(cudaMemsetAsync(device_to, value, bytes, stream_), "cudaMemsetAsync",
                          "value ", value, ", ", bytes, " bytes"));
}

absl::StatusOr<Event> StreamImpl::record(Waker* waker) {
  RETURN_IF_ERROR(usable());
  if (capturing_)
    return absl::FailedPreconditionError("record() on a stream that captures a graph");
  return events_.record(stream_, waker);
}

absl::Status StreamImpl::synchronize(absl::Time deadline) {
  ASSIGN_OR_RETURN(const Event event, record(nullptr));
  absl::Status waited = event.wait_until(deadline);
  if (absl::IsDeadlineExceeded(waited)) device_.work_is_lost();
  return waited;
}

absl::Status StreamImpl::begin_capture() {
  RETURN_IF_ERROR(usable());
  if (capturing_) return absl::FailedPreconditionError("begin_capture() twice on a stream");
  std::unique_lock<std::mutex> lock(recording_mutex_);
  RETURN_IF_ERROR(cuda_status(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                              "cudaStreamBeginCapture", "thread local"));
  capturing_ = true;
  recording_lock_ = std::move(lock);
  return absl::OkStatus();
}

// Ends it also after an error: a thread that records may not allocate.
absl::StatusOr<Graph> StreamImpl::end_capture() {
  if (!std::exchange(capturing_, false)) {
    return absl::FailedPreconditionError("end_capture() on a stream that captures no graph");
  }
  const std::unique_lock<std::mutex> lock = std::move(recording_lock_);
  Recording recording;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &recording.graph);
  RETURN_IF_ERROR(usable());
  RETURN_IF_ERROR(cuda_status(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t graph = nullptr;
  RETURN_IF_ERROR(
      cuda_status(cudaGraphInstantiate(&graph, recording.graph, 0), "cudaGraphInstantiate"));
  return Graph(std::make_unique<GraphState>(graph));
}

absl::Status StreamImpl::launch(const Graph& graph) {
  if (graph.empty()) return absl::InvalidArgumentError("launch of an empty graph");
  RETURN_IF_ERROR(usable());
  return cuda_status(cudaGraphLaunch(static_cast<GraphState*>(graph.state())->graph, stream_),
                     "cudaGraphLaunch");
}

}  // namespace brigade::kernels::cuda
