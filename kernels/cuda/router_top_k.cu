#include <cmath>
#include <limits>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/lanes16.cuh"
#include "kernels/cuda/math.cuh"

namespace brigade::kernels::cuda {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();  // marks what is out of the choice
constexpr int kNoIndex = std::numeric_limits<int>::max();

// One row's working set in shared memory; a warp works on it, lane i on elements i, i + 32, ...
struct RouterRow {
  float* scores;  // [experts]: logits, then unbiased scores; gates come from these
  float* choice;  // [experts]: what selection compares
  float* groups;  // [groups]
  float* gates;   // [top_k]
};

size_t shared_bytes(const RouterRule& rule) {
  return sizeof(float) * static_cast<size_t>(2 * rule.num_experts + rule.num_groups + rule.top_k);
}

__device__ RouterRow row_in(float* shared, const RouterRule& rule) {
  RouterRow row;
  row.scores = shared;
  row.choice = row.scores + rule.num_experts;
  row.groups = row.choice + rule.num_experts;
  row.gates = row.groups + rule.num_groups;
  return row;
}

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x); }

// Reads the logits: NaN as the lowest, +inf as the largest finite number. True when one of them was
// NaN or +inf, or all were -inf: the gates become NaN.
__device__ bool take_logits(const float* logits, int count, float* taken) {
  bool broken = false;
  bool all_lowest = true;
  for (int i = lane(); i < count; i += kWarp) {
    const float x = logits[i];
    const bool is_nan = !(x == x);
    const bool too_large = x > kLargest;
    broken |= is_nan || too_large;
    all_lowest &= is_nan || x == kLowest;
    taken[i] = is_nan ? kLowest : too_large ? kLargest : x;
  }
  __syncwarp();
  return __any_sync(kFullWarp, broken) || __all_sync(kFullWarp, all_lowest);
}

// scores = softmax(scores). Half-warps hold the same 16 lanes; exponentials are shared among
// all 32.
__device__ void score_softmax(int count, float* scores) {
  float largest = kLowest;
  for (int i = lane() % kLanes; i < count; i += kLanes) largest = fmaxf(largest, scores[i]);
  largest = largest16(largest);
  __syncwarp();
  for (int i = lane(); i < count; i += kWarp) scores[i] = exp_f32(__fsub_rn(scores[i], largest));
  __syncwarp();
  float sum = 0;
  for (int i = lane() % kLanes; i < count; i += kLanes) sum = __fadd_rn(sum, scores[i]);
  sum = sum16(sum);
  __syncwarp();
  for (int i = lane(); i < count; i += kWarp) scores[i] = __fdiv_rn(scores[i], sum);
}

__device__ void score_sigmoid(int count, float* scores) {
  for (int i = lane(); i < count; i += kWarp) {
    scores[i] = __fdiv_rn(1.0f, __fadd_rn(1.0f, exp_f32(__fsub_rn(0.0f, scores[i]))));
  }
}

__device__ void make_scores(const RouterTopKArgs& args, const RouterRow& row) {
  const RouterRule& rule = args.rule;
  if (!rule.softmax_after_top_k) {
    if (rule.scoring == RouterScoring::kSigmoid) {
      score_sigmoid(rule.num_experts, row.scores);
    } else {
      score_softmax(rule.num_experts, row.scores);
    }
  }
  __syncwarp();
  for (int i = lane(); i < rule.num_experts; i += kWarp) {
    const float score = row.scores[i];
    const float choice = args.bias == nullptr ? score : __fadd_rn(score, args.bias[i]);
    row.choice[i] = choice == choice ? choice : kLowest;
  }
  __syncwarp();
}

struct Candidate {
  float value;
  int index;
};
__device__ __forceinline__ bool better(Candidate a, Candidate b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The best of this lane's elements that are not NaN.
__device__ Candidate best_of_lane(const float* values, int count) {
  Candidate best{kLowest, kNoIndex};
  for (int i = lane(); i < count; i += kWarp) {
    const Candidate candidate{values[i], i};
    if (better(candidate, best)) best = candidate;
  }
  return best;
}

__device__ __forceinline__ Candidate best_of_warp(Candidate best) {
#pragma unroll
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const Candidate other{__shfl_xor_sync(kFullWarp, best.value, apart),
                          __shfl_xor_sync(kFullWarp, best.index, apart)};
    if (better(other, best)) best = other;
  }
  return best;
}

// Takes the `wanted` best out of values[0, count) (they become NaN), in falling order, ties to the
// lower index; NaN values are not eligible, and enough others must be there. take(k, index) is
// called by every lane.
template <class Take>
__device__ void select_best(float* values, int count, int wanted, const Take& take) {
  Candidate mine = best_of_lane(values, count);
  for (int k = 0; k < wanted; ++k) {
    const Candidate best = best_of_warp(mine);
    take(k, best.index);
    if (best.index % kWarp == lane()) {
      values[best.index] = kNan;
      mine = best_of_lane(values, count);
    }
  }
  __syncwarp();
}

__device__ float group_score(const float* choice, int size, GroupScore kind) {
  float best = kLowest, second = kLowest;
  for (int i = 0; i < size; ++i) {
    const float value = choice[i];
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  const float score = kind == GroupScore::kSumOfTwoBest ? __fadd_rn(best, second) : best;
  return score == score ? score : kLowest;
}

// Only the experts of the best groups stay eligible.
__device__ void limit_groups(const RouterRule& rule, const RouterRow& row) {
  const int size = rule.num_experts / rule.num_groups;
  for (int group = lane(); group < rule.num_groups; group += kWarp) {
    row.groups[group] = group_score(row.choice + group * size, size, rule.group_score);
  }
  __syncwarp();
  select_best(row.groups, rule.num_groups, rule.groups_kept, [](int, int) {});
  for (int i = lane(); i < rule.num_experts; i += kWarp) {
    const float group = row.groups[i / size];
    if (group == group) row.choice[i] = kNan;  // the kept ones have become NaN
  }
  __syncwarp();
}

// Every lane adds all of them, in rising k.
__device__ float sum_gates(const float* gates, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k) sum = __fadd_rn(sum, gates[k]);
  return sum;
}

__device__ void divide_gates(float* gates, int count, float sum) {
  __syncwarp();
  for (int k = lane(); k < count; k += kWarp) gates[k] = __fdiv_rn(gates[k], sum);
  __syncwarp();
}

// From the scores of the chosen to their gates, in place.
__device__ void make_gates(const RouterRule& rule, float* gates) {
  if (rule.softmax_after_top_k) {
    float top = gates[0];
    for (int k = 1; k < rule.top_k; ++k) top = gates[k] > top ? gates[k] : top;
    __syncwarp();
    for (int k = lane(); k < rule.top_k; k += kWarp) gates[k] = exp_f32(__fsub_rn(gates[k], top));
    __syncwarp();
    divide_gates(gates, rule.top_k, sum_gates(gates, rule.top_k));
  }
  if (rule.renormalize) {
    const float sum = __fadd_rn(sum_gates(gates, rule.top_k), rule.renormalize_epsilon);
    divide_gates(gates, rule.top_k, sum);
  }
}

// A warp and a block a row: the work is short chains, so spreading rows over multiprocessors
// matters more than filling them.
__global__ void __launch_bounds__(kWarp) router_top_k_kernel(RouterTopKArgs args) {
  GPU_DYNAMIC_SHARED(float, shared);
  const RouterRule& rule = args.rule;
  const RouterRow row = row_in(shared, rule);
  const int64_t r = blockIdx.x;
  const bool broken = take_logits(args.logits + r * rule.num_experts, rule.num_experts, row.scores);
  make_scores(args, row);
  if (rule.groups_kept < rule.num_groups) limit_groups(rule, row);
  int32_t* experts = args.experts + r * rule.top_k;
  select_best(row.choice, rule.num_experts, rule.top_k, [&](int k, int index) {
    if (lane() != 0) return;
    experts[k] = index;
    row.gates[k] = row.scores[index];
  });
  make_gates(rule, row.gates);
  float* gates = args.gates + r * rule.top_k;
  for (int k = lane(); k < rule.top_k; k += kWarp) {
    gates[k] = broken ? kNan : __fmul_rn(row.gates[k], rule.scale);
  }
}

}  // namespace

cudaError_t router_top_k(cudaStream_t stream, const RouterTopKArgs& args) {
  return launch(router_top_k_kernel, dim3(args.rows), dim3(kWarp), shared_bytes(args.rule), stream,
                args);
}

}  // namespace brigade::kernels::cuda
