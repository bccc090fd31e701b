// A stream of a GPU. See kernels/core/device.h for the contract; calls return without waiting, and
// an error of CUDA is sticky. After an error on the GPU a waker is not woken: whoever sleeps on one
// wakes by its own deadline, finds the event ready and the error in it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>

#include "absl/status/statusor.h"
#include "kernels/core/device_cuda.h"
#include "kernels/cuda/stream_events.h"

namespace brigade::kernels::cuda {

class FastMath;

class StreamImpl final : public CudaStream {
 public:
  // `device` outlives the stream and was made current. `fast`: with a FastMath.
  static absl::StatusOr<std::unique_ptr<Stream>> create(CudaDevice& device, bool fast);
  // Waits a while for work that is still enqueued.
  ~StreamImpl() override;

  Device& device() const override { return device_; }
  const CudaOps& ops() const override { return device_.ops(); }
  // The cudaStream_t. Makes its GPU the calling thread's current one: launches need that.
  void* native() const override;
  int record_for(void* event) override;
  FastMath* fast_math() const { return fast_math_.get(); }  // null: mode identical

  absl::Status copy_to_device(void* device_to, const void* host_from, size_t bytes) override;
  absl::Status copy_to_host(void* host_to, const void* device_from, size_t bytes) override;
  absl::Status copy_on_device(void* device_to, const void* device_from, size_t bytes) override;
  absl::Status fill_bytes(void* device_to, uint8_t value, size_t bytes) override;
  absl::StatusOr<Event> record(Waker* waker) override;
  absl::Status synchronize(absl::Time deadline) override;

  absl::Status begin_capture() override;
  absl::StatusOr<Graph> end_capture() override;
  absl::Status launch(const Graph& graph) override;

 private:
  StreamImpl(CudaDevice& device, cudaStream_t stream);
  absl::Status copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* way);
  absl::Status usable() const;
  absl::Status keep(absl::Status status);

  CudaDevice& device_;
  const cudaStream_t stream_;
  const std::shared_ptr<StickyError> error_;
  StreamEvents events_;
  std::unique_ptr<FastMath> fast_math_;
  bool capturing_ = false;
  std::mutex recording_mutex_;  // held while the stream records a graph
  std::unique_lock<std::mutex> recording_lock_;
};

}  // namespace brigade::kernels::cuda
