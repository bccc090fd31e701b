// The grouped expert FFN on CUDA against the CPU: equal bits for every mix of groups.
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/moe.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/kernels_cuda/test_experts.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::expect_parity;
using tests::Tensors;
using tests::TestExperts;

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
        TestExperts layer(random_, shape.hidden);
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
  TestExperts layer(random_, 72);
  layer.add(DType::kBF16, 40, 3);
  layer.add(DType::kF16, 56, 34);
  layer.add(DType::kF32, 17, 1);
  layer.add(DType::kBF16, 100, 40);
  layer.fill();
  expect_parity(expert_ffn, [&](Tensors& t) { return layer.args(t, DType::kF32, true); });
}

// More groups than one launch takes.
TEST_F(ExpertFfnParity, ManyGroups) {
  TestExperts layer(random_, 24);
  for (int g = 0; g < 150; ++g) layer.add(DType::kBF16, 16, g % 7 == 0 ? 0 : 1 + g % 2);
  layer.fill();
  expect_parity(expert_ffn, [&](Tensors& t) { return layer.args(t, DType::kF32, true); });
}

}  // namespace
}  // namespace brigade::kernels
