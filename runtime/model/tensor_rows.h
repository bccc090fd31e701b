// The rows of one or several [*, k] tensors of a mapped checkpoint, one after the other, in one dtype: a
// few at a time, so that joining or widening large tensors takes no memory to speak of. Also what is
// known of a tensor's bytes. Tensors outlive it; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/model/model_tensors.h"

namespace brigade::runtime {

int64_t num_elements(const TensorView& tensor);

// Bytes of a tensor in its file.
int64_t stored_bytes(const TensorView& tensor);

// The dtype that holds every value of all tensors: theirs when they agree, else f32.
kernels::DType common_dtype(const std::vector<const TensorView*>& tensors);

// `count` values at `from`, possibly unaligned, of a dtype of weights.
void widen(kernels::DType dtype, const void* from, int64_t count, float* to);

// Row-major host values of a tensor in `dtype`: its own bytes, or a widened copy kept in `storage`.
const void* in_dtype(const TensorView& tensor, kernels::DType dtype, std::vector<float>& storage);

class TensorRows {
 public:
  // All of the same width. `dtype` holds every value of all (common_dtype(), or f32).
  TensorRows(std::vector<const TensorView*> parts, kernels::DType dtype);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  // Rows [first, first + count), row-major: where they lie, or a copy that is valid until the next call.
  const void* operator()(int64_t first, int64_t count) const;

 private:
  const std::vector<const TensorView*> parts_;
  const kernels::DType dtype_;
  const int64_t width_;
  int64_t rows_ = 0;
  mutable std::vector<uint8_t> copy_;
};

}  // namespace brigade::runtime
