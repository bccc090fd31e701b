#include "kernels/ops/dispatch.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/device_cpu.h"

namespace brigade::kernels {

absl::Status check_positive(const char* op, const char* field, int64_t value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": ", field, " is ", value, "; it must be positive"));
}

absl::Status check_at_least(const char* op, const char* field, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": ", field, " is ", value, "; it must be at least ", least));
}

absl::Status check_pointer(const char* op, const char* field, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", field, " is null"));
}

absl::Status check_that(bool holds, const char* op, const char* sentence) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", sentence));
}

WeightLayout weight_layout(const Device& device) {
  const bool rows = device.kind() == DeviceKind::kCuda &&
                    static_cast<const CudaDevice&>(device).math() == CudaMath::kFast;
  return rows ? WeightLayout::kRows : WeightLayout::kPanels;
}

absl::Status check_layout(const char* op, const Device& device, WeightFormat format) {
  if (weight_layout(format) == WeightLayout::kPanels ||
      weight_layout(device) == WeightLayout::kRows) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(op, ": weights are ", weight_format_name(format),
                                                 ", which the device ", device.name(),
                                                 " does not read; pack them as its "
                                                 "weight_layout() says"));
}

void* PointerVisitor::translate(const void* pointer, int64_t bytes, const char* field) {
  absl::StatusOr<void*> found = stream_.shadow(pointer, static_cast<size_t>(bytes), field);
  if (found.ok()) return *found;
  if (status_.ok()) status_ = found.status();
  return nullptr;
}

ThreadPool& cpu_threads(Stream& stream) { return static_cast<CpuStream&>(stream).threads(); }

CpuAsyncStream& cpu_async_stream(Stream& stream) { return static_cast<CpuAsyncStream&>(stream); }

CudaStream& cuda_stream(Stream& stream) { return static_cast<CudaStream&>(stream); }

const CudaOps* cuda_ops(const Device& device) {
  return device.kind() == DeviceKind::kCuda ? &static_cast<const CudaDevice&>(device).ops()
                                            : nullptr;
}

absl::Status no_cuda_kernel(const char* op) {
  return absl::UnimplementedError(absl::StrCat(op, ": the CUDA module has no kernel for it"));
}

}  // namespace brigade::kernels
