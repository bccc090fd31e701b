#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "combine";

absl::Status check(const CombineArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "top_k", args.top_k));
  RETURN_IF_ERROR(check_positive(kOp, "hidden", args.hidden));
  RETURN_IF_ERROR(check_pointer(kOp, "answers", args.answers));
  RETURN_IF_ERROR(check_pointer(kOp, "residual", args.residual));
  if (args.norm_weight != nullptr) {
    RETURN_IF_ERROR(check_pointer(kOp, "normed", args.normed));
    RETURN_IF_ERROR(check_that(args.norm_eps >= 0, kOp, "norm_eps must not be negative"));
  }
  return check_that(args.answer_dtype != DType::kI32, kOp, "answer_dtype must be f32, bf16 or f16");
}

void visit(CombineArgs& args, PointerVisitor& pointers) {
  const int64_t hidden = args.hidden;
  const int64_t slots = int64_t{args.rows} * args.top_k;
  pointers.device(args.answers, slots * hidden * int64_t(dtype_bytes(args.answer_dtype)),
                  "answers");
  pointers.device(args.gates, 4 * slots, "gates");
  pointers.device(args.residual, 4 * args.rows * hidden, "residual");
  pointers.device(args.norm_weight, 4 * hidden, "norm_weight");
  pointers.device(args.normed, 4 * args.rows * hidden, "normed");
}

}  // namespace

absl::Status combine(Stream& stream, const CombineArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::combine, &visit);
}

}  // namespace brigade::kernels
