#include "runtime/model/weight_uploader.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "kernels/ops/packed_parts.h"
#include "runtime/model/tensor_rows.h"

namespace brigade::runtime {

using kernels::Buffer;
using kernels::DType;
using kernels::WeightFormat;

WeightUploader::WeightUploader(kernels::StagedUpload& upload, LoadProgress total,
                               LoadProgressCallback callback)
    : upload_(upload), progress_(total), callback_(std::move(callback)) {}

void WeightUploader::count(const TensorView& tensor) {
  ++progress_.tensors;
  progress_.bytes += stored_bytes(tensor);
  if (callback_) callback_(progress_);
}

// After an error the caller frees what it has uploaded before: none of it may be under way then.
absl::StatusOr<Buffer> WeightUploader::fill(const std::string& name, size_t bytes,
                                            kernels::StagedUpload::Write write) {
  absl::StatusOr<Buffer> buffer = Buffer::allocate(upload_.device(), bytes);
  if (!buffer.ok()) {
    upload_.finish().IgnoreError();
    return absl::Status(buffer.status().code(), absl::StrCat(name, ": ",
                                                             std::string(buffer.status().message())));
  }
  RETURN_IF_ERROR(upload_.fill(name, buffer->data(), bytes, write));
  return buffer;
}

absl::StatusOr<Buffer> WeightUploader::copy(const std::string& name, const void* from,
                                            size_t bytes) {
  return fill(name, bytes, [from](size_t first, size_t count, void* to) {
    std::memcpy(to, static_cast<const uint8_t*>(from) + first, count);
  });
}

WeightFormat WeightUploader::format_of(DType dtype) const {
  return kernels::weight_format(dtype, kernels::weight_layout(upload_.device()));
}

absl::StatusOr<PackedWeights> WeightUploader::pack(const std::vector<const TensorView*>& parts,
                                                   DType dtype) {
  const TensorRows rows(parts, dtype);
  const WeightFormat format = format_of(dtype);
  const int64_t outputs = rows.rows(), k = rows.width();
  ASSIGN_OR_RETURN(Buffer buffer,
                   fill(parts.front()->name, kernels::packed_bytes(format, outputs, k),
                        [&](size_t first, size_t bytes, void* to) {
                          kernels::pack_matrix_part(format, rows, outputs, k, first, bytes, to);
                        }));
  for (const TensorView* part : parts) count(*part);
  const void* data = buffer.data();
  return PackedWeights{std::move(buffer), {data, format, outputs, k}};
}

absl::StatusOr<PackedWeights> WeightUploader::matrix(const std::vector<const TensorView*>& parts) {
  return pack(parts, common_dtype(parts));
}

absl::StatusOr<PackedWeights> WeightUploader::matrix_as(const TensorView& tensor, DType dtype) {
  return pack({&tensor}, dtype);
}

absl::StatusOr<PackedWeights> WeightUploader::gate_up(const TensorView& gate, const TensorView& up,
                                                      DType dtype) {
  const TensorRows gate_rows({&gate}, dtype), up_rows({&up}, dtype);
  const WeightFormat format = format_of(dtype);
  const int64_t ffn = gate_rows.rows(), k = gate_rows.width();
  ASSIGN_OR_RETURN(Buffer buffer, fill(gate.name, 2 * kernels::packed_bytes(format, ffn, k),
                                       [&](size_t first, size_t bytes, void* to) {
                                         kernels::pack_gate_up_part(format, gate_rows, up_rows, ffn,
                                                                    k, first, bytes, to);
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
    widen(part->dtype, part->data, num_elements(*part), values.data() + start);
  }
  ASSIGN_OR_RETURN(Buffer buffer, host_floats(parts.front()->name, values));
  for (const TensorView* part : parts) count(*part);
  return buffer;
}

absl::StatusOr<Buffer> WeightUploader::rows(const TensorView& tensor) {
  ASSIGN_OR_RETURN(Buffer buffer,
                   copy(tensor.name, tensor.data, static_cast<size_t>(stored_bytes(tensor))));
  count(tensor);
  return buffer;
}

absl::StatusOr<Buffer> WeightUploader::host_floats(const std::string& name,
                                                   const std::vector<float>& values) {
  return copy(name, values.data(), values.size() * sizeof(float));
}

}  // namespace brigade::runtime
