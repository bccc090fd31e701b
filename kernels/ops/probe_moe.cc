// The numerics probe's experts and routers.
#include "absl/strings/str_cat.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/probe_bench.h"

namespace brigade::kernels {
namespace {

constexpr int kHidden = 45, kFfn = 67;

struct ProbeExpert {
  Buffer gate_up, down;
  ExpertWeights weights;
};

absl::StatusOr<ProbeExpert> make_expert(ProbeBench& bench, DType dtype) {
  const WeightFormat format = weight_format(dtype, weight_layout(bench.device()));
  const size_t count = size_t{kHidden} * kFfn;
  const std::vector<uint8_t> gate = bench.numbers().values(dtype, count),
                             up = bench.numbers().values(dtype, count),
                             down = bench.numbers().values(dtype, count);
  std::vector<uint8_t> gate_up_packed(2 * packed_bytes(format, kFfn, kHidden));
  std::vector<uint8_t> down_packed(packed_bytes(format, kHidden, kFfn));
  pack_gate_up(format, gate.data(), up.data(), kFfn, kHidden, gate_up_packed.data());
  pack_matrix(format, down.data(), kHidden, kFfn, down_packed.data());
  ProbeExpert expert;
  ASSIGN_OR_RETURN(expert.gate_up, bench.upload(gate_up_packed));
  ASSIGN_OR_RETURN(expert.down, bench.upload(down_packed));
  expert.weights = {
      .gate_up = {expert.gate_up.data(), format, gate_up_outputs(format, kFfn), kHidden},
      .down = {expert.down.data(), format, kHidden, kFfn},
      .ffn = kFfn};
  return expert;
}

absl::Status probe_ffn(ProbeBench& bench, DType dtype, DType out_dtype) {
  ASSIGN_OR_RETURN(const ProbeExpert first, make_expert(bench, dtype));
  ASSIGN_OR_RETURN(const ProbeExpert second, make_expert(bench, dtype));
  // Groups of one row, two, a few, many, and so many that a GPU takes them in tiles.
  const ExpertGroup groups[] = {{first.weights, 0, 1},
                                {second.weights, 1, 2},
                                {first.weights, 3, 5},
                                {second.weights, 8, 11},
                                {first.weights, 19, 40}};
  constexpr int kGroups = 5, kTotal = 59;
  ASSIGN_OR_RETURN(const Buffer x, bench.random(DType::kF32, size_t{kTotal} * kHidden));
  ASSIGN_OR_RETURN(const Buffer out,
                   bench.allocate(size_t{kTotal} * kHidden * dtype_bytes(out_dtype)));
  const size_t scratch_bytes = expert_ffn_scratch_bytes(bench.device(), kTotal, kHidden, kFfn);
  ASSIGN_OR_RETURN(const Buffer scratch, bench.allocate(scratch_bytes));
  RETURN_IF_ERROR(expert_ffn(bench.stream(), {.x = x.as<float>(),
                                              .out = out.data(),
                                              .out_dtype = out_dtype,
                                              .groups = groups,
                                              .num_groups = kGroups,
                                              .total = kTotal,
                                              .hidden = kHidden,
                                              .scratch = scratch.data(),
                                              .scratch_bytes = scratch_bytes}));
  return bench.keep(absl::StrCat("expert_ffn ", dtype_name(dtype), " to ", dtype_name(out_dtype)),
                    out);
}

absl::Status probe_rule(ProbeBench& bench, const char* name, const RouterRule& rule) {
  constexpr int kRows = 7;
  ASSIGN_OR_RETURN(const Buffer logits,
                   bench.random(DType::kF32, size_t(kRows) * rule.num_experts));
  ASSIGN_OR_RETURN(const Buffer bias, bench.random(DType::kF32, rule.num_experts));
  ASSIGN_OR_RETURN(const Buffer experts,
                   bench.allocate(size_t(kRows) * rule.top_k * sizeof(int32_t)));
  ASSIGN_OR_RETURN(const Buffer gates, bench.allocate(size_t(kRows) * rule.top_k * sizeof(float)));
  const bool biased = rule.scoring == RouterScoring::kSigmoid;
  RETURN_IF_ERROR(router_top_k(bench.stream(), {.logits = logits.as<float>(),
                                                .bias = biased ? bias.as<float>() : nullptr,
                                                .experts = experts.as<int32_t>(),
                                                .gates = gates.as<float>(),
                                                .rule = rule,
                                                .rows = kRows}));
  RETURN_IF_ERROR(bench.keep(absl::StrCat("router ", name, " ids"), experts));
  return bench.keep(absl::StrCat("router ", name, " gates"), gates);
}

}  // namespace

absl::Status probe_experts(ProbeBench& bench) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType out : {DType::kF32, DType::kBF16}) {
      RETURN_IF_ERROR(probe_ffn(bench, dtype, out));
    }
  }
  return absl::OkStatus();
}

absl::Status probe_router(ProbeBench& bench) {
  RETURN_IF_ERROR(
      probe_rule(bench, "softmax", {.num_experts = 60, .top_k = 6, .renormalize = true}));
  RETURN_IF_ERROR(probe_rule(bench, "top-k first",
                             {.num_experts = 9, .top_k = 2, .softmax_after_top_k = true}));
  return probe_rule(bench, "sigmoid",
                    {.num_experts = 40,
                     .top_k = 5,
                     .scoring = RouterScoring::kSigmoid,
                     .renormalize = true,
                     .renormalize_epsilon = 0x1p-66f,
                     .scale = 2.5f,
                     .num_groups = 4,
                     .groups_kept = 2,
                     .group_score = GroupScore::kSumOfTwoBest});
}

}  // namespace brigade::kernels
