// Paged attention as the forward pass calls it, on a GPU against the CPU: long contexts and many
// rows, which the emulation has no time for. What the kernel's parts do is in
// attention_parity_test.cc.
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::AttentionCase;
using tests::AttentionShape;
using tests::OpRunner;

void expect_equal_bits(const AttentionCase& c) {
  SCOPED_TRACE(::testing::Message() << dtype_name(c.shape.dtype) << ", heads " << c.shape.heads
                                    << "/" << c.shape.kv_heads << " of " << c.shape.head_dim
                                    << ", window " << c.shape.window << ", rows " << c.rows());
  OpRunner cpu(DeviceKind::kCpu, 2), cuda(tests::create_device_under_test());
  const auto as_result = [](const std::vector<float>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    return std::vector<tests::Tensors::Result>{{DType::kF32, {bytes, bytes + values.size() * 4}}};
  };
  const std::vector<float> expected = c.run(cpu, 0, c.rows());
  EXPECT_EQ("", tests::first_difference(as_result(expected), as_result(c.run(cuda, 0, c.rows()))));
  for (int row = 0; row < c.rows(); row += 37) {
    const auto begin = expected.begin() + int64_t{row} * c.width();
    EXPECT_EQ("", tests::first_difference(as_result({begin, begin + c.width()}),
                                          as_result(c.run(cuda, row, 1))))
        << "row " << row << " alone";
  }
}

TEST(AttentionOpParity, PrefillDecodeAndDraftsTogether) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 80, 128, 256}) {
      const AttentionShape shape{.heads = 8, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
      AttentionCase c(shape, {200, 1500, 4000}, tests::test_seed());
      for (int position = 60; position < 200; ++position) c.add_row(0, position);
      c.add_row(1, 1499);
      for (int i = 0; i < 5; ++i) c.add_row(2, 3995 + i);
      expect_equal_bits(c);
    }
  }
}

TEST(AttentionOpParity, Window) {
  const AttentionShape shape{
      .heads = 4, .kv_heads = 4, .head_dim = 128, .dtype = DType::kBF16, .window = 300};
  AttentionCase c(shape, {2000}, tests::test_seed());
  for (const int position : {0, 299, 300, 301, 1023, 1999}) c.add_row(0, position);
  expect_equal_bits(c);
}

}  // namespace
}  // namespace brigade::kernels
