#include "kernels/cpu/matmul.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

void visit(MatmulArgs& args, PointerVisitor& visitor) {
  const int64_t outputs = args.weights.outputs;
  const auto span = [](int64_t rows, int64_t stride, int64_t width) {
    return ((rows - 1) * stride + width) * static_cast<int64_t>(sizeof(float));
  };
  visitor.device(args.x, span(args.rows, args.x_stride, args.weights.k), "matmul: x");
  visitor.device(args.weights.data,
                 static_cast<int64_t>(packed_bytes(args.weights.format, outputs, args.weights.k)),
                 "matmul: weights");
  visitor.device(args.bias, outputs * static_cast<int64_t>(sizeof(float)), "matmul: bias");
  visitor.device(args.y, span(args.rows, args.y_stride, outputs), "matmul: y");
}

absl::Status check(const Stream& stream, const MatmulArgs& args) {
  RETURN_IF_ERROR(check_at_least("matmul", "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive("matmul", "weights.outputs", args.weights.outputs));
  RETURN_IF_ERROR(check_positive("matmul", "weights.k", args.weights.k));
  RETURN_IF_ERROR(check_pointer("matmul", "weights.data", args.weights.data));
  RETURN_IF_ERROR(check_that(reinterpret_cast<uintptr_t>(args.weights.data) % 64 == 0, "matmul",
                             "weights.data is not 64-byte aligned"));
  RETURN_IF_ERROR(check_layout("matmul", stream.device(), args.weights.format));
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check_pointer("matmul", "x", args.x));
  RETURN_IF_ERROR(check_pointer("matmul", "y", args.y));
  if (args.rows == 1) return absl::OkStatus();
  RETURN_IF_ERROR(check_at_least("matmul", "x_stride", args.x_stride, args.weights.k));
  return check_at_least("matmul", "y_stride", args.y_stride, args.weights.outputs);
}

}  // namespace

absl::Status matmul(Stream& stream, const MatmulArgs& args) {
  RETURN_IF_ERROR(check(stream, args));
  if (args.rows == 0) return absl::OkStatus();
  return dispatch(stream, args, cpu::matmul, visit);
}

}  // namespace brigade::kernels
