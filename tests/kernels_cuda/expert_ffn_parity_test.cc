// The grouped expert FFN on CUDA against the CPU: equal bits for every mix of groups.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/moe.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/kernels_cuda/test_weights.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::expect_parity;
using tests::random_floats;
using tests::Tensors;
using tests::TestWeights;

// Experts of one layer and the rows that go to each; rows are gathered and scattered at random.
struct Layer {
  struct Expert {
    TestWeights gate_up, down;
    int ffn, count;
  };
  Layer(std::mt19937_64& random, int hidden_in) : random(random), hidden(hidden_in) {}

  void add(DType dtype, int ffn, int count) {
    experts.push_back({TestWeights::gate_up(random, dtype, ffn, hidden),
                       TestWeights(random, dtype, hidden, ffn), ffn, count});
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
  ExpertFfnArgs args(Tensors& t, DType out_dtype, bool indexed) {
    groups.clear();
    int first = 0;
    for (const Expert& expert : experts) {
      ExpertWeights weights;
      if (expert.count > 0) weights = {expert.gate_up.upload(t), expert.down.upload(t), expert.ffn};
      groups.push_back({weights, first, expert.count});
      first += expert.count;
    }
    const size_t scratch = expert_ffn_scratch_bytes(t.runner().device(), total, hidden, max_ffn);
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
  std::vector<Expert> experts;
  std::vector<ExpertGroup> groups;
  std::vector<float> x;
  std::vector<int32_t> row_index, out_index;
};

class ExpertFfnParity : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};
};

TEST_F(ExpertFfnParity, GroupsAndShapes) {
  struct Shape {
    int hidden, ffn;
  };
  const std::vector<std::vector<int>> batches = {{1}, {0, 2, 0, 1}, {5, 0, 9}, {33, 1}, {0, 0, 65}};
  for (const DType dtype : tests::kWeightDtypes) {
    for (const Shape shape : {Shape{33, 17}, Shape{64, 300}, Shape{257, 101}}) {
      for (const auto& counts : batches) {
        SCOPED_TRACE(::testing::Message()
                     << dtype_name(dtype) << " hidden " << shape.hidden << " ffn " << shape.ffn
                     << " counts " << ::testing::PrintToString(counts));
        Layer layer(random_, shape.hidden);
        for (const int count : counts) layer.add(dtype, shape.ffn, count);
        layer.fill();
        for (const DType out : {DType::kF32, DType::kBF16}) {
          expect_parity(expert_ffn,
                        [&](Tensors& t) { return layer.args(t, out, out == DType::kF32); });
        }
      }
    }
  }
}

// One call whose groups differ in dtype and ffn, with few and with many rows.
TEST_F(ExpertFfnParity, MixedGroups) {
  Layer layer(random_, 72);
  layer.add(DType::kBF16, 40, 3);
  layer.add(DType::kF16, 56, 34);
  layer.add(DType::kF32, 17, 1);
  layer.add(DType::kBF16, 100, 40);
  layer.fill();
  expect_parity(expert_ffn, [&](Tensors& t) { return layer.args(t, DType::kF32, true); });
}

// More groups than one launch takes.
TEST_F(ExpertFfnParity, ManyGroups) {
  Layer layer(random_, 24);
  for (int g = 0; g < 150; ++g) layer.add(DType::kBF16, 16, g % 7 == 0 ? 0 : 1 + g % 2);
  layer.fill();
  expect_parity(expert_ffn, [&](Tensors& t) { return layer.args(t, DType::kF32, true); });
}

}  // namespace
}  // namespace brigade::kernels
