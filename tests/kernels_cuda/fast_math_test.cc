// Mode fast on the emulated device: products through the stand-in of cuBLAS and the streaming
// kernels for rows of weights, against the CPU within stated tolerances.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/fast_math.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/kernels_cuda/test_experts.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::OpRunner;
using tests::random_floats;
using tests::Spread;
using tests::Tensors;
using tests::TestExperts;
using tests::TestWeights;

constexpr int kStreamed = cuda::kFirstBlasCount - 1;

class FastMathTest : public ::testing::Test {
 protected:
  std::mt19937_64 random_{tests::test_seed()};
  OpRunner cpu_{DeviceKind::kCpu, 1};
  OpRunner cuda_{cuda::create_device({.kind = DeviceKind::kCuda, .cuda_math = CudaMath::kFast})};

  // What the call writes there, as f32.
  template <typename Args, typename Call>
  static std::vector<float> run(OpRunner& runner, absl::Status (*op)(Stream&, const Args&),
                                const Call& call) {
    Tensors tensors(runner);
    OpRunner::expect_ok(op(runner.stream(), call(tensors)));
    runner.synchronize();
    const Tensors::Result result = tensors.results().at(0);
    std::vector<float> values(result.bytes.size() / dtype_bytes(result.dtype));
    for (size_t i = 0; i < values.size(); ++i) {
      if (result.dtype == DType::kF32) {
        std::memcpy(&values[i], &result.bytes[i * 4], 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, &result.bytes[i * 2], 2);
        values[i] = bf16_to_f32(bits);
      }
    }
    return values;
  }
  static uint64_t library_calls() { return cuda_emulation::counters().library_calls; }
};

// Half a unit of the last place of a number near 1.
float rounding(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24f : dtype == DType::kF16 ? 0x1p-11f : 0x1p-8f;
}

// Of row r and output n: the sum of |x w|, which bounds what rounding the terms can do.
std::vector<float> magnitudes(const std::vector<float>& x, int rows, int k, int x_stride,
                              const std::vector<float>& weights, int outputs) {
  std::vector<float> sums(size_t(rows) * outputs);
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < outputs; ++n) {
      for (int i = 0; i < k; ++i) {
        sums[size_t(r) * outputs + n] +=
            std::fabs(x[size_t(r) * x_stride + i] * weights[size_t(n) * k + i]);
      }
    }
  }
  return sums;
}

struct MatmulCase {
  int outputs, k, rows, padding;  // with padding: also bias and accumulate
  MatmulArgs args(Tensors& t, const TestWeights& weights, const std::vector<float>& x,
                  const std::vector<float>& bias, const std::vector<float>& y) const {
    return {.x = t.in(x),
            .weights = weights.upload(t),
            .bias = padding > 0 ? t.in(bias) : nullptr,
            .y = t.inout(y),
            .x_stride = k + padding,
            .y_stride = outputs + padding,
            .rows = rows,
            .accumulate = padding > 0};
  }
};

// |got - want| stays within `of_terms` of the sum of |x w| and the roundings after it; padding is
// not written.
void expect_close_sums(const MatmulCase& c, const std::vector<float>& got,
                       const std::vector<float>& want, const std::vector<float>& terms,
                       float of_terms) {
  for (int r = 0; r < c.rows; ++r) {
    for (int n = 0; n < c.outputs + c.padding; ++n) {
      const size_t at = size_t(r) * (c.outputs + c.padding) + n;
      float allowed = 0;
      if (n < c.outputs) {
        allowed = of_terms * terms[size_t(r) * c.outputs + n] + 0x1p-22f * std::fabs(want[at]);
        if (c.padding > 0) allowed += 1e-6f;  // a bias and a value from before near 1
      }
      ASSERT_TRUE(std::fabs(got[at] - want[at]) <= allowed)
          << "row " << r << " output " << n << ": " << got[at] << " for " << want[at]
          << ", allowed " << allowed;
    }
  }
}

TEST_F(FastMathTest, MatmulIsCloseToTheCpu) {
  const MatmulCase cases[] = {{1, 1, 1, 0},
                              {21, 600, 5, 3},
                              {21, 600, 65, 0},
                              {300, 7, kStreamed, 3},
                              {257, 260, 2, 0},
                              {257, 260, kStreamed + 1, 3},
                              {300, 7, kStreamed + 1, 0},
                              {257, 260, 65, 3}};
  for (const DType dtype : tests::kWeightDtypes) {
    for (const MatmulCase& c : cases) {
      SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " [" << c.outputs << ", " << c.k
                                        << " + " << c.padding << "], rows " << c.rows);
      // Routers are narrow: theirs is never rounded.
      const bool library = c.rows > kStreamed && c.outputs >= cuda::kLeastBlasOutputs;
      const TestWeights weights(random_, dtype, c.outputs, c.k);
      const auto bias = random_floats(random_, c.outputs);
      const auto x = random_floats(random_, size_t(c.rows) * (c.k + c.padding));
      const auto y = random_floats(random_, size_t(c.rows) * (c.outputs + c.padding));
      const auto call = [&](Tensors& t) { return c.args(t, weights, x, bias, y); };
      const auto want = run(cpu_, matmul, call);
      const uint64_t before = library_calls();
      const auto got = run(cuda_, matmul, call);
      EXPECT_EQ(library_calls() - before, library ? 1u : 0u);
      // Only the library's x is rounded; sums are in f32, in any order, of at most 600 terms.
      expect_close_sums(c, got, want,
                        magnitudes(x, c.rows, c.k, c.k + c.padding, weights.values(), c.outputs),
                        (library ? rounding(dtype) : 0) + 600 * 0x1p-24f);
    }
  }
}

// More rows than are rounded at a time.
TEST_F(FastMathTest, MatmulTakesRowsInPieces) {
  constexpr int kOutputs = 3, kK = 60000, kRows = 150;
  static_assert(size_t{kRows} * kK * 2 > cuda::FastMath::kRowBytes);
  const TestWeights weights(random_, DType::kBF16, kOutputs, kK);
  std::vector<float> x(size_t(kRows) * kK);
  for (float& value : x) value = static_cast<float>(random_() % 257) / 256;  // exact in bf16
  const auto call = [&](Tensors& t) {
    return MatmulArgs{.x = t.in(x),
                      .weights = weights.upload(t),
                      .y = t.out<float>(size_t(kRows) * kOutputs),
                      .x_stride = kK,
                      .y_stride = kOutputs,
                      .rows = kRows};
  };
  const auto by_library = [](Stream& stream, const MatmulArgs& args) {
    return cuda::library_matmul(static_cast<CudaStream&>(stream), args);
  };
  const uint64_t before = library_calls();
  const auto got = run<MatmulArgs>(cuda_, by_library, call);
  EXPECT_EQ(library_calls() - before, 2u);
  const auto want = run(cpu_, matmul, call);
  // Sums of 60000 terms of about 1, of either sign: f32 sums differ by far less than one term.
  tests::expect_close(got, want, 0.05f, 1e-4f);
}

// Errors relative to a row's largest answer, and to no less than the answers' root mean square:
// rounding goes with the terms of a sum, not with what is left where they cancel.
void expect_close_rows(const std::vector<float>& got, const std::vector<float>& want, int hidden,
                       float tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double squares = 0;
  for (const float value : want) squares += double{value} * value;
  const auto typical = static_cast<float>(std::sqrt(squares / static_cast<double>(want.size())));
  float worst = 0;
  for (size_t row = 0; row < want.size(); row += hidden) {
    float largest = typical, error = 0;
    for (int i = 0; i < hidden; ++i) {
      ASSERT_FALSE(std::isnan(got[row + i])) << "row " << row / hidden << " column " << i;
      largest = std::fmax(largest, std::fabs(want[row + i]));
      error = std::fmax(error, std::fabs(got[row + i] - want[row + i]));
    }
    worst = std::fmax(worst, error / largest);
  }
  EXPECT_LE(worst, tolerance);
  std::printf("largest error %.1e of a row's answers, allowed %.1e\n", worst, tolerance);
}

// Where the library takes part, x, gate and up, their product and the answer are each rounded once
// to the weights' dtype. Seen: below 6 roundings.
float tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5f : 12 * rounding(dtype); }

TEST_F(FastMathTest, ExpertFfnIsCloseToTheCpu) {
  const std::vector<std::vector<int>> batches = {{1}, {0, 16, 3}, {17, 0, 65}, {40, 2, 0, 18}};
  for (const DType dtype : tests::kWeightDtypes) {
    for (const int ffn : {17, 104}) {
      for (const auto& counts : batches) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " ffn " << ffn << " counts "
                                          << ::testing::PrintToString(counts));
        TestExperts layer(random_, 77, Spread::kNormal);
        uint64_t calls = 0;
        for (const int count : counts) {
          layer.add(dtype, ffn, count);
          if (count > kStreamed) calls = 2;  // gate and up of all such experts, then down
        }
        layer.fill();
        const DType out = ffn == 17 ? DType::kF32 : DType::kBF16;
        const auto call = [&](Tensors& t) { return layer.args(t, out, out == DType::kF32); };
        const auto want = run(cpu_, expert_ffn, call);
        const uint64_t before = library_calls();
        const auto got = run(cuda_, expert_ffn, call);
        EXPECT_EQ(library_calls() - before, calls);
        const float of_wire = out == DType::kBF16 ? 2 * rounding(out) : 0;  // both sides
        expect_close_rows(got, want, 77, of_wire + (calls > 0 ? tolerance(dtype) : 1e-5f));
      }
    }
  }
}

// More experts than one call of the library takes; in f32, where what is rounded hides nothing.
TEST_F(FastMathTest, ExpertFfnOfManyExperts) {
  TestExperts layer(random_, 24, Spread::kNormal);
  for (int e = 0; e < cuda::kMaxBlasGroups + 2; ++e) layer.add(DType::kF32, 16, kStreamed + 1);
  layer.fill();
  const auto call = [&](Tensors& t) { return layer.args(t, DType::kF32, true); };
  const auto want = run(cpu_, expert_ffn, call);
  const uint64_t before = library_calls();
  const auto got = run(cuda_, expert_ffn, call);
  EXPECT_EQ(library_calls() - before, 4u);
  expect_close_rows(got, want, 24, tolerance(DType::kF32));
}

TEST_F(FastMathTest, ExpertFfnOfSeveralDtypes) {
  TestExperts layer(random_, 77, Spread::kNormal);
  layer.add(DType::kF32, 40, 20);
  layer.add(DType::kF16, 9, 2);
  layer.add(DType::kBF16, 64, 18);
  layer.add(DType::kF16, 56, 19);
  layer.fill();
  const auto call = [&](Tensors& t) { return layer.args(t, DType::kF32, true); };
  const auto want = run(cpu_, expert_ffn, call);
  const uint64_t before = library_calls();
  const auto got = run(cuda_, expert_ffn, call);
  EXPECT_EQ(library_calls() - before, 6u);
  expect_close_rows(got, want, 77, tolerance(DType::kBF16));
}

// A call recorded in a graph does it all again: no host memory is read after it was made. The
// library's grouped call takes sizes from host memory: a recorded call makes a plain one an expert.
TEST_F(FastMathTest, CallsCanBeRecorded) {
  const int rows = kStreamed + 3;
  TestExperts layer(random_, 32, Spread::kNormal);
  layer.add(DType::kBF16, 48, rows);
  layer.add(DType::kBF16, 48, rows + 1);
  layer.add(DType::kBF16, 48, 2);
  layer.fill();
  Tensors t(cuda_);
  {
    ExpertFfnArgs args = layer.args(t, DType::kF32, true);
    OpRunner::expect_ok(cuda_.stream().begin_capture());
    OpRunner::expect_ok(expert_ffn(cuda_.stream(), args));
    layer.groups.clear();
    layer.groups.shrink_to_fit();
  }
  auto graph = cuda_.stream().end_capture();
  OpRunner::expect_ok(graph.status());
  const uint64_t before = library_calls();
  OpRunner::expect_ok(cuda_.stream().launch(*graph));
  cuda_.synchronize();
  EXPECT_EQ(library_calls() - before, 4u);
  const auto recorded = t.results();
  const auto call = [&](Tensors& tensors) { return layer.args(tensors, DType::kF32, true); };
  const auto direct = run(cuda_, expert_ffn, call);
  ASSERT_EQ(recorded.at(0).bytes.size(), direct.size() * sizeof(float));
  EXPECT_EQ(std::memcmp(recorded.at(0).bytes.data(), direct.data(), recorded.at(0).bytes.size()),
            0);
}

// Panels on this device give the CPU's bits; rows on a device that keeps panels are refused.
TEST_F(FastMathTest, Layouts) {
  constexpr int kOutputs = 20, kK = 40, kRows = 2;
  const TestWeights weights(random_, DType::kBF16, kOutputs, kK);
  const auto x = random_floats(random_, kRows * kK);
  const auto panels = [&](Tensors& t) {
    Tensors on_cpu(cpu_);
    PackedMatrix matrix = weights.upload(on_cpu);
    const auto* bytes = static_cast<const uint8_t*>(matrix.data);
    matrix.data = t.in(
        std::vector<uint8_t>(bytes, bytes + packed_bytes(matrix.format, matrix.outputs, matrix.k)));
    return MatmulArgs{.x = t.in(x),
                      .weights = matrix,
                      .y = t.out<float>(kRows * kOutputs),
                      .x_stride = kK,
                      .y_stride = kOutputs,
                      .rows = kRows};
  };
  EXPECT_TRUE(tests::same_bits(run(cpu_, matmul, panels), run(cuda_, matmul, panels)));

  Tensors t(cpu_);
  MatmulArgs args = panels(t);
  args.weights.format = WeightFormat::kBF16Rows;
  EXPECT_EQ(std::string(matmul(cpu_.stream(), args).message()),
            "matmul: weights are bf16_rows, which the device " + cpu_.device().name() +
                " does not read; pack them as its weight_layout() says");
}

}  // namespace
}  // namespace brigade::kernels
