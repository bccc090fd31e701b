// Matrix products on CUDA against the CPU: equal bits, whichever kernel a number of rows takes.
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/dense.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/kernels_cuda/test_weights.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::expect_parity;
using tests::OpRunner;
using tests::random_floats;
using tests::Tensors;
using tests::TestWeights;

class MatmulParity : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};
};

struct Shape {
  int outputs, k;
};

// K of one k, of an odd number, at and around the ends of steps and blocks, with more blocks than a
// thread block has room for at a time; outputs that are no multiple of a panel or of a thread
// block's panels.
TEST_F(MatmulParity, Shapes) {
  for (const DType dtype : tests::kWeightDtypes) {
    for (const Shape shape : {Shape{1, 1}, Shape{5, 7}, Shape{16, 255}, Shape{17, 256},
                              Shape{130, 64}, Shape{40, 257}, Shape{21, 600}, Shape{3, 8500}}) {
      const TestWeights weights(random_, dtype, shape.outputs, shape.k);
      // Both sides of 1, 4, 8 and of the first count that is tiled; whole and cut tiles.
      for (const int rows : {1, 2, 5, 9, 32, 33, 65}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " [" << shape.outputs << ", "
                                          << shape.k << "], rows " << rows);
        const auto x = random_floats(random_, size_t(rows) * shape.k);
        expect_parity(matmul, [&](Tensors& t) {
          return MatmulArgs{.x = t.in(x),
                            .weights = weights.upload(t),
                            .y = t.out<float>(size_t(rows) * shape.outputs),
                            .x_stride = shape.k,
                            .y_stride = shape.outputs,
                            .rows = rows};
        });
      }
    }
  }
}

TEST_F(MatmulParity, BiasAccumulateAndStrides) {
  constexpr int kOutputs = 37, kK = 300, kPadding = 3;
  for (const DType dtype : tests::kWeightDtypes) {
    const TestWeights weights(random_, dtype, kOutputs, kK);
    const auto bias = random_floats(random_, kOutputs);
    for (const int rows : {1, 7, 40}) {
      // Rows of x that are 16-byte aligned, and rows that are not.
      for (const int x_stride : {kK, kK + 4, kK + 3}) {
        auto x = random_floats(random_, size_t(rows) * x_stride);
        for (int r = 0; r < rows; ++r) {
          for (int i = kK; i < x_stride; ++i)
            x[size_t(r) * x_stride + i] = NAN;  // must not be read into a sum
        }
        const auto y = random_floats(random_, size_t(rows) * (kOutputs + kPadding));
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " rows " << rows << " x_stride "
                                            << x_stride << " accumulate " << accumulate);
          expect_parity(matmul, [&](Tensors& t) {
            return MatmulArgs{.x = t.in(x),
                              .weights = weights.upload(t),
                              .bias = t.in(bias),
                              .y = t.inout(y),
                              .x_stride = x_stride,
                              .y_stride = kOutputs + kPadding,
                              .rows = rows,
                              .accumulate = accumulate};
          });
        }
      }
    }
  }
}

// Infinities, NaN, zeros of both signs and numbers below the smallest normal one go through.
TEST_F(MatmulParity, SpecialNumbers) {
  constexpr int kOutputs = 32, kK = 270;
  const float special[] = {0.0f,   -0.0f,  1e-40f,   -1e-40f,   1e38f,
                           -1e38f, 1e-30f, INFINITY, -INFINITY, NAN};
  for (const DType dtype : tests::kWeightDtypes) {
    const TestWeights weights(random_, dtype, kOutputs, kK);
    for (const int rows : {1, 4, 40}) {
      auto x = random_floats(random_, size_t(rows) * kK, 1e-20f);
      for (int r = 0; r < rows; ++r) {
        // Every second row stays finite.
        for (int n = 0; n < 20; ++n)
          x[size_t(r) * kK + random_() % kK] = special[random_() % (r % 2 ? 10 : 7)];
      }
      expect_parity(matmul, [&](Tensors& t) {
        return MatmulArgs{.x = t.in(x),
                          .weights = weights.upload(t),
                          .y = t.out<float>(size_t(rows) * kOutputs),
                          .x_stride = kK,
                          .y_stride = kOutputs,
                          .rows = rows};
      });
    }
  }
}

// The comparison sees a product whose sums are cut elsewhere: the same weights with their first 16
// k moved into a product of their own, added afterwards.
TEST_F(MatmulParity, SeesAnotherOrderOfAdditions) {
  constexpr int kOutputs = 16, kK = 272;
  const TestWeights whole(random_, DType::kF32, kOutputs, kK);
  const auto x = random_floats(random_, kK);
  bool head_and_tail = false;
  const auto call = [&](Tensors& t) {
    PackedMatrix matrix = whole.upload(t);
    const float* x_at = t.in(x);
    float* const y = t.out<float>(kOutputs);
    MatmulArgs args{
        .x = x_at, .weights = matrix, .y = y, .x_stride = kK, .y_stride = kOutputs, .rows = 1};
    if (head_and_tail && t.runner().device().kind() == DeviceKind::kCuda) {
      args.weights.k = 16;  // one panel: its first 16 k are its first bytes
      OpRunner::expect_ok(matmul(t.runner().stream(), args));
      args.weights.k = kK - 16;
      args.weights.data = static_cast<const float*>(matrix.data) + 16 * kPanelOutputs;
      args.x += 16;
      args.accumulate = true;
    }
    return args;
  };
  EXPECT_EQ("", tests::parity_difference(matmul, call));
  head_and_tail = true;
  EXPECT_NE("", tests::parity_difference(matmul, call));
}

}  // namespace
}  // namespace brigade::kernels
