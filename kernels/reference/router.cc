#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/reference/reference.h"

namespace brigade::kernels::reference {
namespace {

std::vector<double> softmax(std::vector<double> x) {
  const double top = *std::max_element(x.begin(), x.end());
  double total = 0;
  for (double& value : x) total += value = std::exp(value - top);
  for (double& value : x) value /= total;
  return x;
}

// Indices of `values` in falling order, ties to the lower index.
std::vector<int> ranked(const std::vector<double>& values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

std::vector<bool> eligible_experts(const RouterRule& rule, const std::vector<double>& choice) {
  const int size = rule.num_experts / rule.num_groups;
  std::vector<double> group_scores;
  for (int group = 0; group < rule.num_groups; ++group) {
    std::vector<double> members(choice.begin() + group * size, choice.begin() + (group + 1) * size);
    std::sort(members.rbegin(), members.rend());
    const bool two = rule.group_score == GroupScore::kSumOfTwoBest && size > 1;
    group_scores.push_back(two ? members[0] + members[1] : members[0]);
  }
  const std::vector<int> groups = ranked(group_scores);
  std::vector<bool> eligible(rule.num_experts, false);
  for (int i = 0; i < rule.groups_kept; ++i) {
    for (int j = 0; j < size; ++j) eligible[groups[i] * size + j] = true;
  }
  return eligible;
}

}  // namespace

void router_top_k(const RouterTopKArgs& args) {
  const RouterRule& rule = args.rule;
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* logits = args.logits + row * rule.num_experts;
    std::vector<double> scores(logits, logits + rule.num_experts);
    if (rule.scoring == RouterScoring::kSigmoid) {
      for (double& s : scores) s = 1 / (1 + std::exp(-s));
    } else if (!rule.softmax_after_top_k) {
      scores = softmax(scores);
    }
    std::vector<double> choice = scores;
    for (int i = 0; args.bias != nullptr && i < rule.num_experts; ++i) choice[i] += args.bias[i];
    const std::vector<bool> eligible = eligible_experts(rule, choice);

    std::vector<int> chosen;
    for (const int expert : ranked(choice)) {
      if (eligible[expert] && static_cast<int>(chosen.size()) < rule.top_k) chosen.push_back(expert);
    }
    std::vector<double> gates;
    for (const int expert : chosen) gates.push_back(scores[expert]);
    if (rule.softmax_after_top_k) gates = softmax(gates);
    const double total = std::accumulate(gates.begin(), gates.end(), 0.0);
    for (int k = 0; k < rule.top_k; ++k) {
      if (rule.renormalize) gates[k] /= total + rule.renormalize_epsilon;
      args.experts[row * rule.top_k + k] = chosen[k];
      args.gates[row * rule.top_k + k] = static_cast<float>(gates[k] * rule.scale);
    }
  }
}

}  // namespace brigade::kernels::reference
