#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "accept_drafts";

absl::Status check(const AcceptDraftsArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "sequences", args.sequences, 0));
  RETURN_IF_ERROR(check_at_least(kOp, "max_drafts", args.max_drafts, 0));
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, args.sequences));
  RETURN_IF_ERROR(check_pointer(kOp, "drawn", args.drawn));
  RETURN_IF_ERROR(check_pointer(kOp, "first_row", args.first_row));
  RETURN_IF_ERROR(check_pointer(kOp, "num_drafts", args.num_drafts));
  RETURN_IF_ERROR(check_pointer(kOp, "accepted", args.accepted));
  RETURN_IF_ERROR(check_pointer(kOp, "next_token", args.next_token));
  return args.max_drafts == 0 ? absl::OkStatus() : check_pointer(kOp, "drafts", args.drafts);
}

void visit(AcceptDraftsArgs& args, PointerVisitor& pointers) {
  const int64_t sequences = args.sequences;
  pointers.device(args.drawn, int64_t{4} * args.rows, "drawn");
  pointers.device(args.first_row, 4 * sequences, "first_row");
  pointers.device(args.drafts, 4 * sequences * args.max_drafts, "drafts");
  pointers.device(args.num_drafts, 4 * sequences, "num_drafts");
  pointers.device(args.accepted, 4 * sequences, "accepted");
  pointers.device(args.next_token, 4 * sequences, "next_token");
}

}  // namespace

absl::Status accept_drafts(Stream& stream, const AcceptDraftsArgs& args) {
  if (args.sequences == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::accept_drafts, &visit);
}

}  // namespace brigade::kernels
