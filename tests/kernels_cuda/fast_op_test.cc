// Mode fast on a GPU against the CPU, within tolerances: cuBLAS, the streaming kernels for rows of
// weights, tensor cores. Each op also recorded in a graph, which must give what the direct call
// gave. How the calls are made is in fast_math_test.cc.
#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/numerics_probe.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels_cuda/parity.h"
#include "tests/kernels_cuda/test_experts.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::OpRunner;
using tests::random_floats;
using tests::Spread;
using tests::Tensors;

class FastOp : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};
  OpRunner cpu_{DeviceKind::kCpu, 2};
  OpRunner cuda_{tests::create_device_under_test(CudaMath::kFast)};

  // What the call writes, f32. `recorded`: enqueued by a graph.
  template <typename Args, typename Call>
  std::vector<float> run(OpRunner& runner, absl::Status (*op)(Stream&, const Args&),
                         const Call& call, bool recorded = false) {
    Tensors tensors(runner);
    const Args args = call(tensors);
    if (recorded) OpRunner::expect_ok(runner.stream().begin_capture());
    OpRunner::expect_ok(op(runner.stream(), args));
    if (recorded) {
      const auto graph = runner.stream().end_capture();
      OpRunner::expect_ok(graph.status());
      OpRunner::expect_ok(runner.stream().launch(*graph));
      runner.synchronize();
    }
    runner.synchronize();
    const std::vector<uint8_t> bytes = tensors.results().at(0).bytes;
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // The largest difference of a row beside the row's largest number.
  static double worst(const std::vector<float>& want, const std::vector<float>& got, int width) {
    double worst = 0;
    for (size_t row = 0; row < want.size(); row += width) {
      double largest = 0, error = 0;
      for (size_t i = row; i < row + width; ++i) {
        if (!std::isfinite(got[i])) return INFINITY;
        largest = std::fmax(largest, std::fabs(want[i]));
        error = std::fmax(error, std::fabs(double{got[i]} - want[i]));
      }
      worst = std::fmax(worst, error / largest);
    }
    return worst;
  }
};

// x and the weights each have one rounding to the weights' dtype; sums of f32 in any order.
double tolerance(DType dtype) {
  return dtype == DType::kF32 ? 1e-4 : dtype == DType::kF16 ? 4e-3 : 3e-2;
}

TEST_F(FastOp, Matmul) {
  struct Shape {
    int outputs, k;
  };
  for (const DType dtype : tests::kWeightDtypes) {
    for (const Shape shape : {Shape{8, 512}, Shape{300, 77}, Shape{512, 1000}}) {
      const tests::TestWeights weights(random_, dtype, shape.outputs, shape.k, Spread::kNormal);
      for (const int rows : {1, 5, 16, 17, 200}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " [" << shape.outputs << ", "
                                          << shape.k << "], rows " << rows);
        const auto x = random_floats(random_, size_t(rows) * shape.k);
        const auto call = [&](Tensors& t) {
          return MatmulArgs{.x = t.in(x),
                            .weights = weights.upload(t),
                            .y = t.out<float>(size_t(rows) * shape.outputs),
                            .x_stride = shape.k,
                            .y_stride = shape.outputs,
                            .rows = rows};
        };
        const auto want = run(cpu_, matmul, call);
        EXPECT_LE(worst(want, run(cuda_, matmul, call), shape.outputs), tolerance(dtype));
        EXPECT_LE(worst(want, run(cuda_, matmul, call, true), shape.outputs), tolerance(dtype))
            << "recorded";
      }
    }
  }
}

TEST_F(FastOp, ExpertFfn) {
  for (const DType dtype : tests::kWeightDtypes) {
    for (const std::vector<int>& counts : std::vector<std::vector<int>>{{3, 40, 0, 17}, {64}}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << ::testing::PrintToString(counts));
      tests::TestExperts layer(random_, 256, Spread::kNormal);
      for (const int count : counts) layer.add(dtype, 96, count);
      layer.fill();
      const auto call = [&](Tensors& t) { return layer.args(t, DType::kF32, true); };
      const auto want = run(cpu_, expert_ffn, call);
      EXPECT_LE(worst(want, run(cuda_, expert_ffn, call), 256), 4 * tolerance(dtype));
      EXPECT_LE(worst(want, run(cuda_, expert_ffn, call, true), 256), 4 * tolerance(dtype))
          << "recorded";
    }
  }
}

TEST_F(FastOp, AttentionOnTensorCores) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 80, 128, 256}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " heads of " << head_dim);
      tests::AttentionCase c({.heads = 8, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype},
                             {300}, tests::test_seed());
      for (int position = 100; position < 300; ++position) c.add_row(0, position);
      const auto want = c.run(cpu_, 0, c.rows()), got = c.run(cuda_, 0, c.rows());
      const double allowed = dtype == DType::kBF16 ? 0.03 : 0.004;  // values are near one
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(want[i], got[i], allowed) << i;
    }
  }
}

// Every path that a start-up probe takes: what it enqueues must run.
TEST_F(FastOp, Probe) {
  const auto outputs = run_numerics_probe(cuda_.device());
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_GT(outputs->size(), 20u);
}

}  // namespace
}  // namespace brigade::kernels
