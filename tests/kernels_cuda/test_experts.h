// Experts of a layer with the rows that go to each, for tests of the expert FFN on CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops/moe.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/kernels_cuda/test_weights.h"

namespace brigade::tests {

// Rows are gathered and scattered at random: add() each expert, fill(), then args() for a call.
struct TestExperts {
  struct Expert {
    TestWeights gate_up, down;
    int ffn, count;
  };
  TestExperts(std::mt19937_64& random, int hidden_in, Spread spread = Spread::kWide)
      : random(random), hidden(hidden_in), spread(spread) {}

  void add(kernels::DType dtype, int ffn, int count) {
    experts.push_back({TestWeights::gate_up(random, dtype, ffn, hidden, spread),
                       TestWeights(random, dtype, hidden, ffn, spread), ffn, count});
    total += count;
    max_ffn = std::max(max_ffn, ffn);
  }
  void fill() {
    tokens = std::max(1, total / 2);
    x = random_floats(random, size_t(tokens) * hidden);
    row_index.resize(total);
    for (int32_t& row : row_index) row = static_cast<int32_t>(random() % tokens);
    out_index.resize(total);
    std::iota(out_index.begin(), out_index.end(), 0);
    std::shuffle(out_index.begin(), out_index.end(), random);
  }
  kernels::ExpertFfnArgs args(Tensors& t, kernels::DType out_dtype, bool indexed) {
    groups.clear();
    int first = 0;
    for (const Expert& expert : experts) {
      kernels::ExpertWeights weights;
      if (expert.count > 0) weights = {expert.gate_up.upload(t), expert.down.upload(t), expert.ffn};
      groups.push_back({weights, first, expert.count});
      first += expert.count;
    }
    const size_t scratch =
        kernels::expert_ffn_scratch_bytes(t.runner().device(), total, hidden, max_ffn);
    return {.x = t.in(indexed ? x : random_rows()),
            .row_index = indexed ? t.in(row_index) : nullptr,
            .out_index = indexed ? t.in(out_index) : nullptr,
            .out = t.out(out_dtype, size_t(total) * hidden),
            .out_dtype = out_dtype,
            .groups = groups.data(),
            .num_groups = static_cast<int>(groups.size()),
            .total = total,
            .hidden = hidden,
            .scratch = t.scratch(scratch),
            .scratch_bytes = scratch};
  }
  // x gathered on the host: a call without indices.
  std::vector<float> random_rows() const {
    std::vector<float> rows;
    for (const int32_t row : row_index) {
      rows.insert(rows.end(), x.begin() + int64_t{row} * hidden,
                  x.begin() + int64_t{row + 1} * hidden);
    }
    return rows;
  }

  std::mt19937_64& random;
  int hidden, total = 0, max_ffn = 0, tokens = 0;
  Spread spread;
  std::vector<Expert> experts;
  std::vector<kernels::ExpertGroup> groups;
  std::vector<float> x;
  std::vector<int32_t> row_index, out_index;
};

}  // namespace brigade::tests
