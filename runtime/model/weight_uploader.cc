#include "runtime/model/weight_uploader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/half.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

using kernels::Buffer;
using kernels::DType;

int64_t num_elements(const TensorView& tensor) {
  int64_t count = 1;
  for (int64_t extent : tensor.shape) count *= extent;
  return count;
}

void widen(const TensorView& tensor, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.data);
  const int64_t count = num_elements(tensor);
  if (tensor.dtype == DType::kF32) {
    std::memcpy(to, bytes, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    to[i] = tensor.dtype == DType::kF16 ? kernels::f16_to_f32(bits) : kernels::bf16_to_f32(bits);
  }
}

}  // namespace

int64_t stored_bytes(const TensorView& tensor) {
  return num_elements(tensor) * static_cast<int64_t>(kernels::dtype_bytes(tensor.dtype));
}

DType common_dtype(const std::vector<const TensorView*>& tensors) {
  const DType first = tensors.front()->dtype;
  const bool equal = std::all_of(tensors.begin(), tensors.end(),
                                 [first](const TensorView* t) { return t->dtype == first; });
  return equal ? first : DType::kF32;
}

const void* in_dtype(const TensorView& tensor, DType dtype, std::vector<float>& storage) {
  if (tensor.dtype == dtype) return tensor.data;
  storage.resize(static_cast<size_t>(num_elements(tensor)));
  widen(tensor, storage.data());
  return storage.data();
}

WeightUploader::WeightUploader(kernels::Device& device, kernels::Stream& stream, LoadProgress total,
                               LoadProgressCallback callback)
    : device_(device), stream_(stream), progress_(total), callback_(std::move(callback)) {}

void WeightUploader::count(const TensorView& tensor) {
  ++progress_.tensors;
  progress_.bytes += stored_bytes(tensor);
  if (callback_) callback_(progress_);
}

absl::StatusOr<Buffer> WeightUploader::fill(size_t bytes, absl::FunctionRef<void(void*)> write) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(device_, bytes));
  if (device_.kind() == kernels::DeviceKind::kCpu) {
    write(buffer.data());
    return buffer;
  }
  std::vector<uint8_t> staging(bytes);
  write(staging.data());
  RETURN_IF_ERROR(stream_.copy_to_device(buffer.data(), staging.data(), bytes));
  RETURN_IF_ERROR(stream_.synchronize(absl::Now() + absl::Minutes(5)));
  return buffer;
}

absl::StatusOr<PackedWeights> WeightUploader::matrix(const std::vector<const TensorView*>& parts) {
  const DType dtype = common_dtype(parts);
  if (parts.size() == 1) return matrix_as(*parts.front(), dtype);
  TensorView all{"", nullptr, dtype, {0, parts.front()->shape[1]}};
  for (const TensorView* part : parts) all.shape[0] += part->shape[0];
  std::vector<uint8_t> joined;
  joined.reserve(static_cast<size_t>(stored_bytes(all)));
  for (const TensorView* part : parts) {
    std::vector<float> storage;
    const auto* from = static_cast<const uint8_t*>(in_dtype(*part, dtype, storage));
    const auto bytes = static_cast<size_t>(num_elements(*part)) * kernels::dtype_bytes(dtype);
    joined.insert(joined.end(), from, from + bytes);
    if (part != parts.back()) count(*part);
  }
  all.data = joined.data();
  const kernels::WeightFormat format =
      kernels::weight_format(dtype, kernels::weight_layout(device_));
  const int64_t outputs = all.shape[0], k = all.shape[1];
  ASSIGN_OR_RETURN(Buffer buffer, fill(kernels::packed_bytes(format, outputs, k), [&](void* to) {
                     kernels::pack_matrix(format, all.data, outputs, k, to);
                   }));
  count(*parts.back());
  const void* data = buffer.data();
  return PackedWeights{std::move(buffer), {data, format, outputs, k}};
}

absl::StatusOr<PackedWeights> WeightUploader::matrix_as(const TensorView& tensor, DType dtype) {
  std::vector<float> storage;
  const void* source = in_dtype(tensor, dtype, storage);
  const kernels::WeightFormat format =
      kernels::weight_format(dtype, kernels::weight_layout(device_));
  const int64_t outputs = tensor.shape[0], k = tensor.shape[1];
  ASSIGN_OR_RETURN(Buffer buffer, fill(kernels::packed_bytes(format, outputs, k), [&](void* to) {
                     kernels::pack_matrix(format, source, outputs, k, to);
                   }));
  count(tensor);
  const void* data = buffer.data();
  return PackedWeights{std::move(buffer), {data, format, outputs, k}};
}

absl::StatusOr<PackedWeights> WeightUploader::gate_up(const TensorView& gate, const TensorView& up,
                                                      DType dtype) {
  std::vector<float> gate_storage, up_storage;
  const void* gate_source = in_dtype(gate, dtype, gate_storage);
  const void* up_source = in_dtype(up, dtype, up_storage);
  const kernels::WeightFormat format =
      kernels::weight_format(dtype, kernels::weight_layout(device_));
  const int64_t ffn = gate.shape[0], k = gate.shape[1];
  ASSIGN_OR_RETURN(Buffer buffer, fill(2 * kernels::packed_bytes(format, ffn, k), [&](void* to) {
                     kernels::pack_gate_up(format, gate_source, up_source, ffn, k, to);
                   }));
  count(gate);
  count(up);
  const void* data = buffer.data();
  return PackedWeights{std::move(buffer), {data, format, kernels::gate_up_outputs(format, ffn), k}};
}

absl::StatusOr<Buffer> WeightUploader::vector_f32(const std::vector<const TensorView*>& parts) {
  std::vector<float> values;
  for (const TensorView* part : parts) {
    const size_t start = values.size();
    values.resize(start + static_cast<size_t>(num_elements(*part)));
    widen(*part, values.data() + start);
    count(*part);
  }
  return host_floats(values);
}

absl::StatusOr<Buffer> WeightUploader::rows(const TensorView& tensor) {
  const auto bytes = static_cast<size_t>(stored_bytes(tensor));
  ASSIGN_OR_RETURN(Buffer buffer,
                   fill(bytes, [&](void* to) { std::memcpy(to, tensor.data, bytes); }));
  count(tensor);
  return buffer;
}

absl::StatusOr<Buffer> WeightUploader::host_floats(const std::vector<float>& values) {
  const size_t bytes = values.size() * sizeof(float);
  return fill(bytes, [&](void* to) { std::memcpy(to, values.data(), bytes); });
}

}  // namespace brigade::runtime
