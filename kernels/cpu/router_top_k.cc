#include "kernels/cpu/cpu_kernels.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/row_pieces.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/router_top_k.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

constexpr float kLowestScore = -std::numeric_limits<float>::infinity();

// One row's working set. Arrays hold whole groups of 16; entries past num_experts are not used.
struct RouterRow {
  alignas(64) float logits[kMaxExperts];  // NaN as the lowest, +inf as the largest finite number
  alignas(64) float scores[kMaxExperts];  // unbiased; gates come from these
  alignas(64) float choice[kMaxExperts];  // what selection compares
  bool eligible[kMaxExperts];
  bool broken = false;  // a logit was NaN or +inf, or all were -inf: the gates become NaN
};

void take_logits(const float* logits, int count, RouterRow& row) {
  bool all_lowest = true;
  for (int i = 0; i < count; ++i) {
    const float x = logits[i];
    const bool is_nan = !(x == x);
    const bool too_large = x > std::numeric_limits<float>::max();
    row.broken |= is_nan || too_large;
    all_lowest &= is_nan || x == kLowestScore;
    row.logits[i] = is_nan ? kLowestScore : too_large ? std::numeric_limits<float>::max() : x;
  }
  row.broken |= all_lowest;
  for (int i = count; i % 16 != 0; ++i) row.logits[i] = kLowestScore;
}

// scores = softmax(logits); the sum runs over 16 lanes and the fixed tree.
void score_softmax(int count, RouterRow& row) {
  Lanes16 largest = set16(kLowestScore);
  for (int i = 0; i < count; i += 16) largest = max16(largest, load16(row.logits + i));
  const Lanes16 top = set16(largest16(largest));
  Lanes16 sum = zero16();
  for (int i = 0; i < count; i += 16) {
    const Lanes16 e = select_range(exp16(sub16(load16(row.logits + i), top)), 0, count - i, 0.0f);
    store16(e, row.scores + i);
    sum = add16(sum, e);
  }
  const Lanes16 total = set16(sum16(sum));
  for (int i = 0; i < count; i += 16) store16(div16(load16(row.scores + i), total), row.scores + i);
}

void score_sigmoid(int count, RouterRow& row) {
  const Lanes16 one = set16(1.0f);
  for (int i = 0; i < count; i += 16) {
    const Lanes16 e = exp16(sub16(zero16(), load16(row.logits + i)));
    store16(div16(one, add16(one, e)), row.scores + i);
  }
}

void make_scores(const RouterTopKArgs& args, RouterRow& row) {
  const int count = args.rule.num_experts;
  if (args.rule.softmax_after_top_k) {
    std::memcpy(row.scores, row.logits, sizeof(float) * static_cast<size_t>(count));
  } else if (args.rule.scoring == RouterScoring::kSigmoid) {
    score_sigmoid(count, row);
  } else {
    score_softmax(count, row);
  }
  for (int i = 0; i < count; ++i) {
    const float choice = args.bias == nullptr ? row.scores[i] : row.scores[i] + args.bias[i];
    row.choice[i] = choice == choice ? choice : kLowestScore;
    row.eligible[i] = true;
  }
}

// The `wanted` best of values[0, count) where `eligible` (null: all), in falling order, ties to the
// lower index. Returns how many there are.
int select_best(const float* values, const bool* eligible, int count, int wanted, int32_t* best) {
  int found = 0;
  for (int i = 0; i < count; ++i) {
    if (eligible != nullptr && !eligible[i]) continue;
    if (found == wanted && !(values[i] > values[best[found - 1]])) continue;
    int at = found < wanted ? found++ : found - 1;
    for (; at > 0 && values[i] > values[best[at - 1]]; --at) best[at] = best[at - 1];
    best[at] = i;
  }
  return found;
}

// Only the experts of the best groups stay eligible.
void limit_groups(const RouterRule& rule, RouterRow& row) {
  const int group_size = rule.num_experts / rule.num_groups;
  float group_scores[kMaxExperts];
  for (int group = 0; group < rule.num_groups; ++group) {
    const float* choice = row.choice + group * group_size;
    int32_t best[2];
    const int wanted = rule.group_score == GroupScore::kSumOfTwoBest ? 2 : 1;
    select_best(choice, nullptr, group_size, wanted, best);
    const float score = wanted == 2 ? choice[best[0]] + choice[best[1]] : choice[best[0]];
    group_scores[group] = score == score ? score : kLowestScore;
  }
  int32_t kept[kMaxExperts];
  select_best(group_scores, nullptr, rule.num_groups, rule.groups_kept, kept);
  for (int i = 0; i < rule.num_experts; ++i) row.eligible[i] = false;
  for (int i = 0; i < rule.groups_kept; ++i) {
    for (int j = 0; j < group_size; ++j) row.eligible[kept[i] * group_size + j] = true;
  }
}

// Sums run over k in rising order.
void make_gates(const RouterRule& rule, const RouterRow& row, const int32_t* experts, float* gates) {
  for (int k = 0; k < rule.top_k; ++k) gates[k] = row.scores[experts[k]];
  if (rule.softmax_after_top_k) {
    float top = gates[0];
    for (int k = 1; k < rule.top_k; ++k) top = gates[k] > top ? gates[k] : top;
    float sum = 0;
    for (int k = 0; k < rule.top_k; ++k) {
      gates[k] = hn::GetLane(exp_f32(F32Tag(), hn::Set(F32Tag(), gates[k] - top)));
      sum += gates[k];
    }
    for (int k = 0; k < rule.top_k; ++k) gates[k] /= sum;
  }
  if (rule.renormalize) {
    float sum = 0;
    for (int k = 0; k < rule.top_k; ++k) sum += gates[k];
    sum += rule.renormalize_epsilon;
    for (int k = 0; k < rule.top_k; ++k) gates[k] /= sum;
  }
  for (int k = 0; k < rule.top_k; ++k) gates[k] *= rule.scale;
}

void router_rows(const RouterTopKArgs& args, int first, int last) {
  const RouterRule& rule = args.rule;
  for (int64_t r = first; r < last; ++r) {
    RouterRow row;
    take_logits(args.logits + r * rule.num_experts, rule.num_experts, row);
    make_scores(args, row);
    if (rule.groups_kept < rule.num_groups) limit_groups(rule, row);
    int32_t* experts = args.experts + r * rule.top_k;
    float* gates = args.gates + r * rule.top_k;
    select_best(row.choice, row.eligible, rule.num_experts, rule.top_k, experts);
    make_gates(rule, row, experts, gates);
    for (int k = 0; row.broken && k < rule.top_k; ++k) {
      gates[k] = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(router_rows);

void cpu::router_top_k(const RouterTopKArgs& args, ThreadPool& threads) {
  // An exp and its comparisons cost as much as some ten copied elements.
  const int64_t elements = static_cast<int64_t>(args.rule.num_experts) * (10 + args.rule.top_k);
  for_row_pieces(threads, args.rows, elements, [&](int first, int last) {
    HWY_DYNAMIC_DISPATCH(router_rows)(args, first, last);
  });
}

}  // namespace brigade::kernels
#endif  // HWY_ONCE
