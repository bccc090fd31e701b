#include "kernels/cuda/device_cuda.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/ops_table.h"
#include "kernels/cuda/probe.h"
#include "kernels/cuda/stream_cuda.h"

namespace brigade::kernels::cuda {
namespace {

class DeviceImpl final : public CudaDevice {
 public:
  DeviceImpl(CudaDeviceInfo info, CudaMath math) : info_(std::move(info)), math_(math) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override {
    return absl::StrCat("cuda:", info_.ordinal, " ", info_.name);
  }
  int num_threads() const override { return 1; }
  int ordinal() const override { return info_.ordinal; }
  const CudaOps& ops() const override { return ops_table(math_); }
  CudaMath math() const override { return math_; }
  bool has_graphs() const override { return true; }
  size_t bytes_in_use() const override { return bytes_in_use_; }
  bool keeps_bits() const override { return math_ == CudaMath::kIdentical; }
  void work_is_lost() override { lost_ = true; }

  size_t free_bytes() const override {
    size_t available = 0, total = 0;
    if (!make_current().ok()) return 0;
    const absl::Status asked = cuda_status(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
    return asked.ok() ? available : 0;
  }

  absl::StatusOr<void*> allocate(size_t bytes) override {
    RETURN_IF_ERROR(make_current());
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, std::max<size_t>(bytes, 1));
    if (error != cudaSuccess) return no_room(error, bytes);
    bytes_in_use_ += bytes;
    return data;
  }

  // Waits for the GPU as CUDA does; not for one whose work was given up.
  void free(void* data, size_t bytes) override {
    if (data == nullptr) return;
    bytes_in_use_ -= bytes;
    if (!lost_ && make_current().ok()) cudaFree(data);
  }

  absl::StatusOr<void*> allocate_pinned(size_t bytes) override {
    RETURN_IF_ERROR(make_current());
    void* data = nullptr;
    RETURN_IF_ERROR(
        cuda_status(cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocDefault),
                    "cudaHostAlloc", bytes, " bytes of pinned host memory"));
    return data;
  }

  void free_pinned(void* data, size_t) override {
    if (data != nullptr && !lost_ && make_current().ok()) cudaFreeHost(data);
  }

  absl::StatusOr<std::unique_ptr<Stream>> create_stream() override {
    RETURN_IF_ERROR(make_current());
    return StreamImpl::create(*this, math_ == CudaMath::kFast);
  }

  absl::Status make_current() const {
    return cuda_status(cudaSetDevice(info_.ordinal), "cudaSetDevice", info_.ordinal);
  }

 private:
  absl::Status no_room(cudaError_t error, size_t bytes) const {
    const absl::Status failed = cuda_status(error, "cudaMalloc", bytes);
    if (error != cudaErrorMemoryAllocation) return failed;
    size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrCat("device ", name(), " cannot allocate ", bytes, " bytes: this process uses ",
                     bytes_in_use_.load(), ", ", available, " of ", total,
                     " are free, the rest is CUDA's and other processes' (",
                     std::string(failed.message()), ")"));
  }

  const CudaDeviceInfo info_;
  const CudaMath math_;
  std::atomic<size_t> bytes_in_use_{0};
  std::atomic<bool> lost_{false};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> create_device(const DeviceOptions& options) {
  ASSIGN_OR_RETURN(CudaDeviceInfo info, usable_device(options.ordinal));
  auto device = std::make_unique<DeviceImpl>(std::move(info), options.cuda_math);
  // Creates the context: what is wrong shows at start.
  const cudaError_t current = cudaSetDevice(options.ordinal);
  if (current == cudaErrorDevicesUnavailable) {
    cudaGetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("device ", device->name(),
                     " takes no further process: its compute mode is exclusive, or it hangs"));
  }
  RETURN_IF_ERROR(cuda_status(current, "cudaSetDevice", options.ordinal));
  return device;
}

}  // namespace brigade::kernels::cuda
