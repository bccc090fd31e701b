#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "argmax_rows";

absl::Status check(const ArgmaxRowsArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "vocab", args.vocab));
  RETURN_IF_ERROR(check_pointer(kOp, "logits", args.logits));
  RETURN_IF_ERROR(check_pointer(kOp, "ids", args.ids));
  RETURN_IF_ERROR(check_pointer(kOp, "scratch", args.scratch));
  return check_at_least(kOp, "scratch_bytes", static_cast<int64_t>(args.scratch_bytes),
                        static_cast<int64_t>(argmax_scratch_bytes(args.rows, args.vocab)));
}

void visit(ArgmaxRowsArgs& args, PointerVisitor& pointers) {
  pointers.device(args.logits, int64_t{4} * args.rows * args.vocab, "logits");
  pointers.device(args.ids, int64_t{4} * args.rows, "ids");
  pointers.device(args.scratch, static_cast<int64_t>(args.scratch_bytes), "scratch");
}

}  // namespace

absl::Status argmax_rows(Stream& stream, const ArgmaxRowsArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::argmax_rows, &visit);
}

}  // namespace brigade::kernels
