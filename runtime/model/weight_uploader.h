// Brings tensors of a mapped checkpoint onto a device in the form the kernels read: packed panels,
// f32 vectors, row-major tables. Tensors of any size are packed piece by piece. Counts what it has
// done for a progress bar. Start-up only, one thread. Buffers come back while their last bytes are
// still under way: finish() waits for all of them, once; an error waits for them too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/staged_upload.h"
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

class WeightUploader {
 public:
  // `upload` outlives it.
  WeightUploader(kernels::StagedUpload& upload, LoadProgress total, LoadProgressCallback callback);

  kernels::StagedUpload& upload() { return upload_; }
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
  // `name` is for errors.
  absl::StatusOr<kernels::Buffer> host_floats(const std::string& name,
                                              const std::vector<float>& values);
  // Counts a tensor that somebody else has uploaded.
  void count(const TensorView& tensor);
  // Waits until the device has everything.
  absl::Status finish() { return upload_.finish(); }

 private:
  absl::StatusOr<kernels::Buffer> fill(const std::string& name, size_t bytes,
                                       kernels::StagedUpload::Write write);
  absl::StatusOr<kernels::Buffer> copy(const std::string& name, const void* from, size_t bytes);
  absl::StatusOr<PackedWeights> pack(const std::vector<const TensorView*>& parts,
                                     kernels::DType dtype);
  kernels::WeightFormat format_of(kernels::DType dtype) const;

  kernels::StagedUpload& upload_;
  LoadProgress progress_;
  LoadProgressCallback callback_;
};

}  // namespace brigade::runtime
