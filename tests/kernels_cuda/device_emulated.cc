// The emulation at its barest: kernels run at once on host memory, without a runtime between, so
// that the address sanitizer sees every access past the end of a tensor.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#include "kernels/core/device_cuda.h"
#include "kernels/cuda/ops_table.h"
#include "tests/cuda_emulation/shim/kernel_run.h"
#include "tests/kernels_cuda/device_under_test.h"
#include "tests/support/test_env.h"

// For messages of the ops table where no stand-in of the runtime is linked.
[[gnu::weak]] const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
[[gnu::weak]] const char* cudaGetErrorString(cudaError_t) {
  return "the emulation ended the launch";
}

[[gnu::weak]] cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}

namespace brigade::tests {
namespace {

class DirectStream : public kernels::CudaStream {
 public:
  explicit DirectStream(kernels::Device& device) : device_(device) {}
  kernels::Device& device() const override { return device_; }
  const kernels::CudaOps& ops() const override {
    return kernels::cuda::ops_table(kernels::CudaMath::kIdentical);
  }
  void* native() const override { return nullptr; }

  absl::Status copy_to_device(void* to, const void* from, size_t bytes) override {
    return copy(to, from, bytes);
  }
  absl::Status copy_to_host(void* to, const void* from, size_t bytes) override {
    return copy(to, from, bytes);
  }
  absl::Status copy_on_device(void* to, const void* from, size_t bytes) override {
    return copy(to, from, bytes);
  }
  absl::Status fill_bytes(void* to, uint8_t value, size_t bytes) override {
    if (bytes > 0) std::memset(to, value, bytes);
    return absl::OkStatus();
  }
  absl::StatusOr<kernels::Event> record(kernels::Waker*) override { return kernels::Event(); }
  absl::Status synchronize(absl::Time) override { return absl::OkStatus(); }

 private:
  static absl::Status copy(void* to, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  kernels::Device& device_;
};

class DirectDevice : public kernels::CudaDevice {
 public:
  kernels::DeviceKind kind() const override { return kernels::DeviceKind::kCuda; }
  std::string name() const override { return "cuda emulation"; }
  int num_threads() const override { return 1; }
  const kernels::CudaOps& ops() const override {
    return kernels::cuda::ops_table(kernels::CudaMath::kIdentical);
  }
  int ordinal() const override { return 0; }

  // Exactly as many bytes as asked for: what lies behind them belongs to the sanitizer.
  absl::StatusOr<void*> allocate(size_t bytes) override {
    void* data = nullptr;
    if (posix_memalign(&data, 64, bytes) != 0) return absl::ResourceExhaustedError("no memory");
    return data;
  }
  void free(void* data, size_t) override { std::free(data); }
  size_t bytes_in_use() const override { return 0; }
  absl::StatusOr<std::unique_ptr<kernels::Stream>> create_stream() override {
    return std::make_unique<DirectStream>(*this);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<kernels::Device>> create_device_under_test() {
  return std::make_unique<DirectDevice>();
}

// First to last, last to first, and two that are shuffled; odd ones poison shared memory with large
// numbers, even ones with NaN.
std::vector<uint64_t> thread_orders() { return {0, 1, 2, test_seed() % 100000 * 2 + 5}; }

void use_thread_order(uint64_t order) { cuda_emulation::set_schedule_seed(order); }

}  // namespace brigade::tests
