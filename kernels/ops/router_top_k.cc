#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "router_top_k";
constexpr char kRule[] = "router rule";

absl::Status check_at_most(const char* field, int64_t value, int64_t most, const char* why) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kRule, ": ", field, " is ", value, ", above ", most, why));
}

absl::Status validate_groups(const RouterRule& rule) {
  RETURN_IF_ERROR(check_positive(kRule, "num_groups", rule.num_groups));
  RETURN_IF_ERROR(check_positive(kRule, "groups_kept", rule.groups_kept));
  RETURN_IF_ERROR(check_at_most("groups_kept", rule.groups_kept, rule.num_groups, " (num_groups)"));
  if (rule.num_experts % rule.num_groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(kRule, ": num_experts ", rule.num_experts,
                                                   " is not a multiple of num_groups ",
                                                   rule.num_groups));
  }
  const int group_size = rule.num_experts / rule.num_groups;
  RETURN_IF_ERROR(check_at_most("top_k", rule.top_k, int64_t{group_size} * rule.groups_kept,
                                " (the experts of the kept groups)"));
  const bool limits = rule.groups_kept < rule.num_groups;
  return check_that(!limits || rule.group_score == GroupScore::kMax || group_size >= 2, kRule,
                    "group_score is the sum of two best, but groups have one expert");
}

absl::Status check(const RouterTopKArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(validate(args.rule));
  RETURN_IF_ERROR(check_pointer(kOp, "logits", args.logits));
  RETURN_IF_ERROR(check_pointer(kOp, "experts", args.experts));
  return check_pointer(kOp, "gates", args.gates);
}

void visit(RouterTopKArgs& args, PointerVisitor& pointers) {
  const int64_t rows = args.rows;
  pointers.device(args.logits, 4 * rows * args.rule.num_experts, "logits");
  pointers.device(args.bias, int64_t{4} * args.rule.num_experts, "bias");
  pointers.device(args.experts, 4 * rows * args.rule.top_k, "experts");
  pointers.device(args.gates, 4 * rows * args.rule.top_k, "gates");
}

}  // namespace

absl::Status validate(const RouterRule& rule) {
  RETURN_IF_ERROR(check_positive(kRule, "num_experts", rule.num_experts));
  RETURN_IF_ERROR(check_at_most("num_experts", rule.num_experts, kMaxExperts, ""));
  RETURN_IF_ERROR(check_positive(kRule, "top_k", rule.top_k));
  RETURN_IF_ERROR(check_at_most("top_k", rule.top_k, rule.num_experts, " (num_experts)"));
  RETURN_IF_ERROR(check_at_most("top_k", rule.top_k, kMaxExpertsPerToken, ""));
  RETURN_IF_ERROR(check_that(!rule.softmax_after_top_k || rule.scoring == RouterScoring::kSoftmax,
                             kRule, "softmax_after_top_k needs softmax scoring"));
  RETURN_IF_ERROR(check_that(std::isfinite(rule.scale), kRule, "scale is not finite"));
  RETURN_IF_ERROR(
      check_that(std::isfinite(rule.renormalize_epsilon) && rule.renormalize_epsilon >= 0, kRule,
                 "renormalize_epsilon is negative or not finite"));
  return validate_groups(rule);
}

absl::Status router_top_k(Stream& stream, const RouterTopKArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::router_top_k, &visit);
}

}  // namespace brigade::kernels
