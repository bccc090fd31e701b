#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "gather_rows";

absl::Status check(const GatherRowsArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "width", args.width));
  RETURN_IF_ERROR(check_pointer(kOp, "x", args.x));
  RETURN_IF_ERROR(check_pointer(kOp, "index", args.index));
  return check_pointer(kOp, "out", args.out);
}

void visit(GatherRowsArgs& args, PointerVisitor& pointers) {
  const int64_t width = args.width;
  pointers.device(args.x, 4 * width, "x");  // how many rows x has is not known here
  pointers.device(args.index, int64_t{4} * args.rows, "index");
  pointers.device(args.out, 4 * args.rows * width, "out");
}

}  // namespace

absl::Status gather_rows(Stream& stream, const GatherRowsArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::gather_rows, &visit);
}

}  // namespace brigade::kernels
