#include "kernels/cuda/fast_math.h"

#include <algorithm>
#include <utility>

#include "kernels/core/status.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/fast_rows.h"
#include "kernels/cuda/stream_cuda.h"

namespace brigade::kernels::cuda {

absl::StatusOr<std::unique_ptr<FastMath>> FastMath::create(Device& device, cudaStream_t stream) {
  auto math = std::make_unique<FastMath>();
  ASSIGN_OR_RETURN(math->blas_, Blas::create(device, stream));
  ASSIGN_OR_RETURN(math->rows_, Buffer::allocate(device, kRowBytes));
  return math;
}

absl::Status library_matmul(CudaStream& stream, const MatmulArgs& args) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  FastMath& math = *static_cast<StreamImpl&>(stream).fast_math();
  const DType dtype = weight_dtype(args.weights.format);
  const int64_t stride = row_elements(args.weights.format, args.weights.k);
  BlasShape shape{.outputs = static_cast<int>(args.weights.outputs),
                  .k = static_cast<int>(args.weights.k),
                  .x_stride = args.x_stride,
                  .weight_stride = stride,
                  .y_stride = args.y_stride};
  if (dtype == DType::kF32) {
    shape.rows = args.rows;
    return math.blas().product(dtype, shape, args.x, args.weights.data, DType::kF32, args.y,
                               args.accumulate);
  }
  shape.x_stride = stride;
  const auto most =
      static_cast<int>(FastMath::kRowBytes / (static_cast<size_t>(stride) * dtype_bytes(dtype)));
  if (most == 0) return absl::InvalidArgumentError("matmul: weights.k is too large for mode fast");
  for (int row = 0; row < args.rows; row += most) {
    shape.rows = std::min(most, args.rows - row);
    RowRanges ranges;
    ranges.range[0].count = shape.rows;
    RETURN_IF_ERROR(cuda_status(round_rows(native, ranges, 1, dtype, args.x + row * args.x_stride,
                                           args.x_stride, nullptr, math.rows(), stride, shape.k),
                                "matmul: round_rows", shape.rows));
    RETURN_IF_ERROR(math.blas().product(dtype, shape, math.rows(), args.weights.data, DType::kF32,
                                        args.y + row * args.y_stride, args.accumulate));
  }
  return absl::OkStatus();
}

absl::Status fast_matmul(CudaStream& stream, const MatmulArgs& args) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  if (weight_layout(args.weights.format) == WeightLayout::kPanels || args.rows < kFirstBlasCount ||
      args.weights.outputs < kLeastBlasOutputs) {
    return cuda_status(matmul(native, args), "matmul", args.rows, " rows");
  }
  RETURN_IF_ERROR(library_matmul(stream, args));
  if (args.bias == nullptr) return absl::OkStatus();
  return cuda_status(
      add_bias(native, args.y, args.y_stride, args.rows, args.bias, args.weights.outputs),
      "matmul: add_bias", args.rows, " rows");
}

}  // namespace brigade::kernels::cuda
