#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "policy";

absl::Status check(const PolicyArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_positive(kOp, "vocab", args.vocab));
  RETURN_IF_ERROR(check_that(args.vocab <= kMaxPolicyVocab, kOp, "vocab is above 2^24"));
  RETURN_IF_ERROR(check_positive(kOp, "max_candidates", args.max_candidates));
  RETURN_IF_ERROR(
      check_that(args.max_candidates <= args.vocab, kOp, "max_candidates is above vocab"));
  RETURN_IF_ERROR(check_pointer(kOp, "logits", args.logits));
  RETURN_IF_ERROR(check_pointer(kOp, "settings", args.settings));
  RETURN_IF_ERROR(check_pointer(kOp, "tokens", args.tokens));
  RETURN_IF_ERROR(check_pointer(kOp, "probabilities", args.probabilities));
  RETURN_IF_ERROR(check_pointer(kOp, "counts", args.counts));
  RETURN_IF_ERROR(check_pointer(kOp, "scratch", args.scratch));
  return check_at_least(kOp, "scratch_bytes", static_cast<int64_t>(args.scratch_bytes),
                        static_cast<int64_t>(policy_scratch_bytes(args.rows, args.vocab)));
}

// The lengths of the lists stand in `settings`, on the device: only their starts are checked.
void visit(PolicyArgs& args, PointerVisitor& pointers) {
  const int64_t rows = args.rows, candidates = rows * args.max_candidates;
  pointers.device(args.logits, 4 * rows * args.vocab, "logits");
  pointers.device(args.settings, rows * int64_t{sizeof(PolicyRow)}, "settings");
  pointers.device(args.bias_tokens, 4, "bias_tokens");
  pointers.device(args.bias_values, 4, "bias_values");
  pointers.device(args.seen_tokens, 4, "seen_tokens");
  pointers.device(args.seen_counts, 4, "seen_counts");
  pointers.device(args.allowed_tokens, 4, "allowed_tokens");
  pointers.device(args.banned_tokens, 4, "banned_tokens");
  pointers.device(args.tokens, 4 * candidates, "tokens");
  pointers.device(args.probabilities, 8 * candidates, "probabilities");
  pointers.device(args.counts, 4 * rows, "counts");
  pointers.device(args.scratch, static_cast<int64_t>(args.scratch_bytes), "scratch");
}

}  // namespace

absl::Status policy(Stream& stream, const PolicyArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::policy, &visit);
}

}  // namespace brigade::kernels
