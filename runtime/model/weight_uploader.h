// Brings tensors of a mapped checkpoint onto a device in the form the kernels read: packed panels,
// f32 vectors, row-major tables. Counts what it has done for a progress bar. Start-up only, one
// thread; every call waits until the device has the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/ops/packed_matrix.h"
#include "runtime/model/model_tensors.h"

namespace brigade::runtime {

struct LoadProgress {
  int64_t tensors = 0, tensors_total = 0;
  int64_t bytes = 0, bytes_total = 0;  // as stored in the checkpoint
};
using LoadProgressCallback = std::function<void(const LoadProgress&)>;

// A packed matrix with its memory.
struct PackedWeights {
  kernels::Buffer buffer;
  kernels::PackedMatrix matrix;
};

// Bytes of a tensor in its file.
int64_t stored_bytes(const TensorView& tensor);

// The dtype that holds every value of all tensors: theirs when they agree, else f32.
kernels::DType common_dtype(const std::vector<const TensorView*>& tensors);

// Row-major host values of a tensor in `dtype`: its own bytes, or a widened copy kept in `storage`.
const void* in_dtype(const TensorView& tensor, kernels::DType dtype, std::vector<float>& storage);

class WeightUploader {
 public:
  WeightUploader(kernels::Device& device, kernels::Stream& stream, LoadProgress total,
                 LoadProgressCallback callback);

  kernels::Stream& stream() { return stream_; }
  // The rows of several [*, k] matrices, one after the other, as one packed matrix.
  absl::StatusOr<PackedWeights> matrix(const std::vector<const TensorView*>& parts);
  // Gate and up of a SwiGLU with panels alternating.
  absl::StatusOr<PackedWeights> gate_up(const TensorView& gate, const TensorView& up,
                                        kernels::DType dtype);
  absl::StatusOr<PackedWeights> matrix_as(const TensorView& tensor, kernels::DType dtype);
  // The elements of several tensors, one after the other, widened to f32.
  absl::StatusOr<kernels::Buffer> vector_f32(const std::vector<const TensorView*>& parts);
  // Unchanged bytes.
  absl::StatusOr<kernels::Buffer> rows(const TensorView& tensor);
  absl::StatusOr<kernels::Buffer> host_floats(const std::vector<float>& values);
  // Counts a tensor that somebody else has uploaded.
  void count(const TensorView& tensor);

 private:
  absl::StatusOr<kernels::Buffer> fill(size_t bytes, absl::FunctionRef<void(void*)> write);

  kernels::Device& device_;
  kernels::Stream& stream_;
  LoadProgress progress_;
  LoadProgressCallback callback_;
};

}  // namespace brigade::runtime
