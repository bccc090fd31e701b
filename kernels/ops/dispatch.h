// The one place where an op meets a device. An op's file in kernels/ops checks its arguments, then
// calls dispatch() with its CPU kernel and the list of its device pointers. On `cpu` the kernel runs
// at once on the caller's thread; on `cpu_async` the arguments are copied, their pointers translated
// and bounds-checked, and the kernel is enqueued; on `cuda` the module's kernel is. Private to kernels/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/core/device_cpu_async.h"
#include "kernels/core/status.h"
#include "kernels/ops/cuda_ops.h"
#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels {

// Sentences for argument checks; nothing is allocated when all is well.
absl::Status check_positive(const char* op, const char* field, int64_t value);
absl::Status check_at_least(const char* op, const char* field, int64_t value, int64_t least);
absl::Status check_pointer(const char* op, const char* field, const void* pointer);
// "<op>: <sentence>" unless `holds`.
absl::Status check_that(bool holds, const char* op, const char* sentence);

// INVALID_ARGUMENT when `device` cannot read weights of `format`: rows are for those that ask for them.
absl::Status check_layout(const char* op, const Device& device, WeightFormat format);

// Replaces the device pointers of a copied argument struct by the addresses of their bytes.
class PointerVisitor {
 public:
  explicit PointerVisitor(CpuAsyncStream& stream) : stream_(stream) {}

  // `bytes`: what the op may touch from `pointer` on, as far as it is known. Null stays null.
  template <typename T>
  void device(T*& pointer, int64_t bytes, const char* field) {
    if (pointer != nullptr) {
      pointer = static_cast<T*>(translate(static_cast<const void*>(pointer), bytes, field));
    }
  }
  // Copies a host array so that it outlives the call; returns the copy for further visits.
  template <typename T>
  T* host_copy(const T*& array, size_t count) {
    auto copy = std::make_shared<std::vector<T>>(array, array + count);
    array = copy->data();
    kept_.push_back(copy);
    return copy->data();
  }

  const absl::Status& status() const { return status_; }
  std::vector<std::shared_ptr<void>> take_kept() { return std::move(kept_); }

 private:
  void* translate(const void* pointer, int64_t bytes, const char* field);

  CpuAsyncStream& stream_;
  absl::Status status_;
  std::vector<std::shared_ptr<void>> kept_;
};

ThreadPool& cpu_threads(Stream& stream);            // `stream` is of device cpu
CpuAsyncStream& cpu_async_stream(Stream& stream);   // `stream` is of device cpu_async
CudaStream& cuda_stream(Stream& stream);             // `stream` is of device cuda
const CudaOps* cuda_ops(const Device& device);       // null for other devices
absl::Status no_cuda_kernel(const char* op);

// `run` executes the op; `visit` names every device pointer in the arguments.
template <typename Args>
absl::Status dispatch(Stream& stream, const Args& args, void (*run)(const Args&, ThreadPool&),
                      void (*visit)(Args&, PointerVisitor&)) {
  switch (stream.device().kind()) {
    case DeviceKind::kCpu: {
      run(args, cpu_threads(stream));
      return absl::OkStatus();
    }
    case DeviceKind::kCpuAsync: {
      CpuAsyncStream& async_stream = cpu_async_stream(stream);
      Args translated = args;
      PointerVisitor visitor(async_stream);
      visit(translated, visitor);
      RETURN_IF_ERROR(visitor.status());
      return async_stream.enqueue([translated, run, kept = visitor.take_kept()](ThreadPool& threads) {
        run(translated, threads);
        return absl::OkStatus();
      });
    }
    case DeviceKind::kCuda: {
      CudaStream& cuda = cuda_stream(stream);
      const CudaEntry<Args> op = entry(cuda.ops(), args);
      return op.run == nullptr ? no_cuda_kernel(op.name) : op.run(cuda, args);
    }
  }
  return absl::InternalError("a device of unknown kind");
}

}  // namespace brigade::kernels
