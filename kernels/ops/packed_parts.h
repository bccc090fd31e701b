// Packing a matrix piece by piece, for whoever has no memory for all of it at once: an upload to a
// device. The bytes are those of kernels/ops/packed_matrix.h. Host; any thread. (A header of its own,
// because CUDA sources see the other one.)
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels {

// Rows [first, first + count) of a matrix, at most kPanelOutputs, as row-major [count, k] in the dtype of
// the format, possibly unaligned. Valid until the next call.
using MatrixRows = absl::FunctionRef<const void*(int64_t first, int64_t count)>;

// Bytes [first, first + bytes) of what pack_matrix() and pack_gate_up() write; only rows of that part are
// asked for. Of a format of panels both are multiples of 64.
void pack_matrix_part(WeightFormat format, MatrixRows rows, int64_t outputs, int64_t k, size_t first,
                      size_t bytes, void* to);
void pack_gate_up_part(WeightFormat format, MatrixRows gate, MatrixRows up, int64_t ffn, int64_t k,
                       size_t first, size_t bytes, void* to);

}  // namespace brigade::kernels
