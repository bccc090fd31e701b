#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "group_terms";

absl::Status check(const GroupTermsArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "terms", args.terms, 0));
  RETURN_IF_ERROR(check_positive(kOp, "num_experts", args.num_experts));
  RETURN_IF_ERROR(check_that(args.num_experts <= kMaxExperts, kOp, "num_experts is above 1024"));
  RETURN_IF_ERROR(check_pointer(kOp, "counts", args.counts));
  RETURN_IF_ERROR(check_pointer(kOp, "offsets", args.offsets));
  if (args.terms == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check_pointer(kOp, "experts", args.experts));
  RETURN_IF_ERROR(check_pointer(kOp, "order", args.order));
  return check_pointer(kOp, "position", args.position);
}

void visit(GroupTermsArgs& args, PointerVisitor& pointers) {
  const int64_t terms = args.terms, experts = args.num_experts;
  pointers.device(args.experts, 4 * terms, "experts");
  pointers.device(args.counts, 4 * experts, "counts");
  pointers.device(args.offsets, 4 * (experts + 1), "offsets");
  pointers.device(args.order, 4 * terms, "order");
  pointers.device(args.position, 4 * terms, "position");
}

}  // namespace

// Without terms too: counts and offsets become zero.
absl::Status group_terms(Stream& stream, const GroupTermsArgs& args) {
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::group_terms, &visit);
}

}  // namespace brigade::kernels
