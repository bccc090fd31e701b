#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "embedding";

absl::Status check(const EmbeddingArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "hidden", args.hidden));
  RETURN_IF_ERROR(check_positive(kOp, "vocab", args.vocab));
  RETURN_IF_ERROR(check_pointer(kOp, "ids", args.ids));
  RETURN_IF_ERROR(check_pointer(kOp, "table", args.table));
  RETURN_IF_ERROR(check_pointer(kOp, "out", args.out));
  return check_that(args.table_dtype != DType::kI32, kOp, "table_dtype must be f32, bf16 or f16");
}

void visit(EmbeddingArgs& args, PointerVisitor& pointers) {
  const int64_t hidden = args.hidden;
  pointers.device(args.ids, int64_t{4} * args.rows, "ids");
  pointers.device(args.table, args.vocab * hidden * int64_t(dtype_bytes(args.table_dtype)),
                  "table");
  pointers.device(args.out, 4 * args.rows * hidden, "out");
}

}  // namespace

absl::Status embedding(Stream& stream, const EmbeddingArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::embedding, &visit);
}

}  // namespace brigade::kernels
