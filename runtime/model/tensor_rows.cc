#include "runtime/model/tensor_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/half.h"

namespace brigade::runtime {

using kernels::DType;

int64_t num_elements(const TensorView& tensor) {
  int64_t count = 1;
  for (int64_t extent : tensor.shape) count *= extent;
  return count;
}

int64_t stored_bytes(const TensorView& tensor) {
  return num_elements(tensor) * static_cast<int64_t>(kernels::dtype_bytes(tensor.dtype));
}

DType common_dtype(const std::vector<const TensorView*>& tensors) {
  const DType first = tensors.front()->dtype;
  const bool equal = std::all_of(tensors.begin(), tensors.end(),
                                 [first](const TensorView* t) { return t->dtype == first; });
  return equal ? first : DType::kF32;
}

void widen(DType dtype, const void* from, int64_t count, float* to) {
  const auto* bytes = static_cast<const uint8_t*>(from);
  if (dtype == DType::kF32) {
    std::memcpy(to, bytes, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    to[i] = dtype == DType::kF16 ? kernels::f16_to_f32(bits) : kernels::bf16_to_f32(bits);
  }
}

const void* in_dtype(const TensorView& tensor, DType dtype, std::vector<float>& storage) {
  if (tensor.dtype == dtype) return tensor.data;
  storage.resize(static_cast<size_t>(num_elements(tensor)));
  widen(tensor.dtype, tensor.data, num_elements(tensor), storage.data());
  return storage.data();
}

TensorRows::TensorRows(std::vector<const TensorView*> parts, DType dtype)
    : parts_(std::move(parts)), dtype_(dtype), width_(parts_.front()->shape[1]) {
  for (const TensorView* part : parts_) rows_ += part->shape[0];
}

const void* TensorRows::operator()(int64_t first, int64_t count) const {
  const size_t row_bytes = static_cast<size_t>(width_) * kernels::dtype_bytes(dtype_);
  size_t copied = 0;
  for (const TensorView* part : parts_) {
    if (first >= part->shape[0]) {
      first -= part->shape[0];
      continue;
    }
    const int64_t here = std::min(count, part->shape[0] - first);
    const size_t part_row_bytes = static_cast<size_t>(width_) * kernels::dtype_bytes(part->dtype);
    const uint8_t* from = static_cast<const uint8_t*>(part->data) + first * part_row_bytes;
    if (copied == 0 && here == count && part->dtype == dtype_) return from;
    copy_.resize(std::max(copy_.size(), copied + count * row_bytes));
    uint8_t* const to = copy_.data() + copied;
    if (part->dtype == dtype_) {
      std::memcpy(to, from, here * row_bytes);
    } else {
      widen(part->dtype, from, here * width_, reinterpret_cast<float*>(to));
    }
    copied += here * row_bytes;
    count -= here;
    first = 0;
    if (count == 0) return copy_.data();
  }
  CHECK(false);
  return nullptr;
}

}  // namespace brigade::runtime
