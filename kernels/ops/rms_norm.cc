#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/strided_extent.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "rms_norm";

absl::Status check(const RmsNormArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "hidden", args.hidden));
  RETURN_IF_ERROR(check_at_least(kOp, "x_stride", args.x_stride, args.hidden));
  RETURN_IF_ERROR(check_at_least(kOp, "out_stride", args.out_stride, args.hidden));
  RETURN_IF_ERROR(check_pointer(kOp, "x", args.x));
  RETURN_IF_ERROR(check_pointer(kOp, "weight", args.weight));
  RETURN_IF_ERROR(check_pointer(kOp, "out", args.out));
  return check_that(args.eps >= 0, kOp, "eps must not be negative");
}

void visit(RmsNormArgs& args, PointerVisitor& pointers) {
  pointers.device(args.x, strided_bytes(args.rows, args.x_stride, args.hidden, 4), "x");
  pointers.device(args.weight, int64_t{4} * args.hidden, "weight");
  pointers.device(args.out, strided_bytes(args.rows, args.out_stride, args.hidden, 4), "out");
}

}  // namespace

absl::Status rms_norm(Stream& stream, const RmsNormArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::rms_norm, &visit);
}

}  // namespace brigade::kernels
