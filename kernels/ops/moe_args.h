// What the Mixture-of-Experts ops take; the ops are in kernels/ops/moe.h. Plain structs, also for
// device compilers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/packed_matrix.h"

namespace brigade::kernels {

// How router logits become experts and gates; data, so that a family is a row of settings.
//   Mixtral, Qwen3-MoE: softmax, renormalize. OLMoE, Qwen2-MoE: softmax, not renormalized.
//   DeepSeek-V2: softmax, groups by max. DeepSeek-V3: sigmoid, selection bias, groups by the sum of
//   the two best biased scores, renormalize, scale.
enum class RouterScoring : uint8_t { kSoftmax, kSigmoid };
enum class GroupScore : uint8_t { kMax, kSumOfTwoBest };
struct RouterRule {
  int num_experts = 0;
  int top_k = 0;
  RouterScoring scoring = RouterScoring::kSoftmax;
  bool softmax_after_top_k = false;  // select by logits, softmax over the chosen (kSoftmax only)
  bool renormalize = false;          // chosen gates divided by (their sum + renormalize_epsilon)
  float renormalize_epsilon = 0;     // 1e-20 in DeepSeek-V3
  float scale = 1;                   // applied to gates last
  int num_groups = 1;                // experts split evenly; only groups_kept groups stay eligible
  int groups_kept = 1;
  GroupScore group_score = GroupScore::kMax;
};
inline constexpr int kMaxExpertsPerToken = 64;
inline constexpr int kMaxExperts = 1024;

// Ids in order of falling selection score, ties to the lower expert id; gates in the same order.
// The bias (DeepSeek-V3 e_score_correction_bias) chooses only; gates come from unbiased scores.
// Groups that are not kept are out, whatever their scores. A NaN logit counts as the lowest, +inf
// as the highest: ids are always distinct and in range. A row with NaN or +inf, or with nothing but
// -inf, gets NaN gates, so that the check of the final logits sees it.
struct RouterTopKArgs {
  const float* logits = nullptr;  // [rows, num_experts]
  const float* bias = nullptr;    // [num_experts] or null
  int32_t* experts = nullptr;     // [rows, top_k]
  float* gates = nullptr;         // [rows, top_k]
  RouterRule rule;
  int rows = 0;
};

// Groups a layer's terms (term t = row * top_k + k, on expert experts[t]) by expert, inside an expert
// in rising t, so in rising row. Group e is order[offsets[e], offsets[e + 1]). An id outside
// [0, num_experts) is in no group; places of `order` behind the last group are not written.
struct GroupTermsArgs {
  const int32_t* experts = nullptr;  // [terms]
  int32_t* counts = nullptr;         // [num_experts]
  int32_t* offsets = nullptr;        // [num_experts + 1]
  int32_t* order = nullptr;          // [terms]: the terms, group after group
  int32_t* position = nullptr;       // [terms]: the place of each term in `order`; -1: in no group
  int terms = 0;
  int num_experts = 0;
};

// One expert's weights (SwiGLU: down(silu(gate(x)) * up(x))).
struct ExpertWeights {
  PackedMatrix gate_up;  // packed by pack_gate_up; k = hidden
  PackedMatrix down;     // [hidden, ffn]; k = ffn
  int ffn = 0;
};
// Rows [first, first + count) of the call's row lists belong to one expert.
struct ExpertGroup {
  ExpertWeights weights;
  int first = 0;
  int count = 0;
};
// out[out_index[i]] = FFN of i's group (x[row_index[i]]), rounded to out_dtype; unweighted.
struct ExpertFfnArgs {
  const float* x = nullptr;             // [*, hidden]
  const int32_t* row_index = nullptr;   // [total] or null: row i reads x[i]
  const int32_t* out_index = nullptr;   // [total] or null: row i writes out[i]
  void* out = nullptr;                  // [*, hidden] of out_dtype
  DType out_dtype = DType::kF32;        // the wire dtype: f32 or bf16
  const ExpertGroup* groups = nullptr;  // host, [num_groups]; must stay valid until the op has run
  int num_groups = 0;
  int total = 0;  // rows over all groups
  int hidden = 0;
  void* scratch = nullptr;  // expert_ffn_scratch_bytes()
  size_t scratch_bytes = 0;
};

// residual[r] += sum over k = 0..top_k-1, in this order, of gates[r][k] * answers[r * top_k + k]:
// acc = 0; acc = fma(gate, answer, acc); then one addition. A slot with gate exactly 0 is still
// added. gates null: every gate is 1 (dense layers, top_k = 1).
// With norm_weight, normed[r] = RMS norm of the new residual[r], with the bits of the op rms_norm:
// the next layer's norm without a launch of its own.
struct CombineArgs {
  const void* answers = nullptr;  // [rows * top_k, hidden] of answer_dtype
  DType answer_dtype = DType::kF32;
  const float* gates = nullptr;  // [rows, top_k] or null
  float* residual = nullptr;     // [rows, hidden]
  int rows = 0;
  int top_k = 0;
  int hidden = 0;
  const float* norm_weight = nullptr;  // [hidden] or null: no norm
  float* normed = nullptr;             // [rows, hidden] when norm_weight is given
  float norm_eps = 0;
};

}  // namespace brigade::kernels
