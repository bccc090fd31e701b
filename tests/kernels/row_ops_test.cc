// Embedding, RMS norm, gather and combine: every device and dtype, awkward widths, against the
// reference; and the bits of a row do not depend on its company.
#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/op_runner.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;
using tests::OpRunner;

constexpr int kWidths[] = {1, 7, 16, 24, 72, 100, 1024};

struct RmsNormCase {
  RmsNormCase(int rows_in, int hidden_in) : rows(rows_in), hidden(hidden_in), stride(hidden_in + 5) {
    std::mt19937_64 random(tests::test_seed());
    x = tests::random_floats(random, size_t(rows) * stride, 3);
    weight = tests::random_floats(random, hidden);
  }
  RmsNormArgs args(const float* x_at, const float* weight_at, float* out_at, int count) const {
    RmsNormArgs args;
    args.x = x_at;
    args.weight = weight_at;
    args.out = out_at;
    args.x_stride = stride;
    args.out_stride = hidden;
    args.rows = count;
    args.hidden = hidden;
    args.eps = 1e-5f;
    return args;
  }
  std::vector<float> run(OpRunner& runner, int first, int count) const {
    const Buffer x_at = runner.upload(x), weight_at = runner.upload(weight);
    const Buffer out = runner.allocate(size_t(count) * hidden * sizeof(float));
    OpRunner::expect_ok(rms_norm(runner.stream(), args(x_at.as<float>() + first * stride,
                                                       weight_at.as<float>(), out.as<float>(), count)));
    return runner.download<float>(out);
  }
  std::vector<float> truth() const {
    std::vector<float> out(size_t(rows) * hidden);
    reference::rms_norm(args(x.data(), weight.data(), out.data(), rows));
    return out;
  }
  int rows, hidden, stride;
  std::vector<float> x, weight;
};

TEST(RmsNorm, AgreesWithTheReference) {
  for (const DeviceKind kind : tests::device_kinds()) {
    for (const int hidden : kWidths) {
      const RmsNormCase problem(5, hidden);
      OpRunner runner(kind, 2);
      // Three roundings and a sum of squares over 16 lanes: a few units of the last place.
      tests::expect_close(problem.run(runner, 0, problem.rows), problem.truth(), 1e-7f, 1e-6f);
    }
  }
}

TEST(RmsNorm, ARowDependsOnItselfAlone) {
  for (const int hidden : {72, 1024}) {
    const RmsNormCase problem(67, hidden);
    EXPECT_EQ(0, tests::count_differences(
                     [&](OpRunner& runner, int first, int count) {
                       return problem.run(runner, first, count);
                     },
                     problem.rows));
  }
  // Enough elements to be divided among threads.
  const RmsNormCase wide(200, 1024);
  OpRunner one(DeviceKind::kCpu, 1), three(DeviceKind::kCpu, 3);
  EXPECT_TRUE(tests::same_bits(wide.run(one, 0, wide.rows), wide.run(three, 0, wide.rows)));
}

// The check above is worth something only if it sees the fault it is for: a norm whose sum is split
// over the threads.
TEST(RmsNorm, TheCheckCatchesASumSplitOverThreads) {
  const RmsNormCase problem(67, 1024);
  const auto split_sum = [&](OpRunner& runner, int first, int count) {
    ThreadPool threads(runner.threads());
    std::vector<float> out;
    for (int row = first; row < first + count; ++row) {
      const float* x = problem.x.data() + row * problem.stride;
      std::vector<float> sums(threads.num_threads(), 0.0f);
      threads.parallel_for(threads.num_threads(), [&](int part, int) {
        for (int i = part * problem.hidden / threads.num_threads();
             i < (part + 1) * problem.hidden / threads.num_threads(); ++i) {
          sums[part] += x[i] * x[i];
        }
      });
      float sum = 0;
      for (const float part : sums) sum += part;
      const float inverse = 1.0f / std::sqrt(sum / problem.hidden + 1e-5f);
      for (int i = 0; i < problem.hidden; ++i) out.push_back(x[i] * inverse * problem.weight[i]);
    }
    return out;
  };
  EXPECT_GT(tests::count_differences(split_sum, problem.rows), 0);
}

TEST(RmsNorm, WorksInPlaceAndNamesBadArguments) {
  const RmsNormCase problem(3, 40);
  for (const DeviceKind kind : tests::device_kinds()) {
    OpRunner runner(kind, 1);
    const Buffer x = runner.upload(problem.x), weight = runner.upload(problem.weight);
    RmsNormArgs args = problem.args(x.as<float>(), weight.as<float>(), x.as<float>(), 3);
    args.out_stride = problem.stride;
    OpRunner::expect_ok(rms_norm(runner.stream(), args));
    const std::vector<float> all = runner.download<float>(x);
    std::vector<float> rows;
    for (int r = 0; r < 3; ++r) {
      rows.insert(rows.end(), all.begin() + r * problem.stride, all.begin() + r * problem.stride + 40);
    }
    tests::expect_close(rows, problem.truth(), 1e-7f, 1e-6f);

    args.hidden = 0;
    EXPECT_THAT(std::string(rms_norm(runner.stream(), args).message()), HasSubstr("hidden is 0"));
    args.hidden = 41 + problem.stride;
    EXPECT_THAT(std::string(rms_norm(runner.stream(), args).message()), HasSubstr("x_stride"));
    args = problem.args(nullptr, weight.as<float>(), x.as<float>(), 3);
    EXPECT_THAT(std::string(rms_norm(runner.stream(), args).message()), HasSubstr("x is null"));
    args.rows = 0;
    OpRunner::expect_ok(rms_norm(runner.stream(), args));
  }
}

TEST(Embedding, WidensRowsAndZeroesUnknownIds) {
  std::mt19937_64 random(tests::test_seed());
  for (const DeviceKind kind : tests::device_kinds()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int hidden : kWidths) {
        const std::vector<int32_t> ids = {3, 0, -1, 10, 9, 11, 3};
        const std::vector<uint8_t> table =
            tests::encode(tests::random_floats(random, size_t(10) * hidden), dtype);
        std::vector<float> expected(ids.size() * hidden);
        EmbeddingArgs args;
        args.ids = ids.data();
        args.table = table.data();
        args.table_dtype = dtype;
        args.out = expected.data();
        args.rows = static_cast<int>(ids.size());
        args.hidden = hidden;
        args.vocab = 10;
        reference::embedding(args);

        OpRunner runner(kind, 2);
        const Buffer ids_at = runner.upload(ids), table_at = runner.upload(table);
        const Buffer out = runner.allocate(expected.size() * sizeof(float));
        args.ids = ids_at.as<int32_t>();
        args.table = table_at.data();
        args.out = out.as<float>();
        OpRunner::expect_ok(embedding(runner.stream(), args));
        EXPECT_TRUE(tests::same_bits(runner.download<float>(out), expected));
      }
    }
  }
}

TEST(GatherRows, CopiesTheNamedRows) {
  std::mt19937_64 random(tests::test_seed());
  for (const DeviceKind kind : tests::device_kinds()) {
    for (const int width : kWidths) {
      const std::vector<float> x = tests::random_floats(random, size_t(9) * width);
      const std::vector<int32_t> index = {8, 0, 0, 5};
      std::vector<float> expected(index.size() * width);
      GatherRowsArgs args{x.data(), index.data(), expected.data(), 4, width};
      reference::gather_rows(args);
      OpRunner runner(kind, 2);
      const Buffer x_at = runner.upload(x), index_at = runner.upload(index);
      const Buffer out = runner.allocate(expected.size() * sizeof(float));
      args = {x_at.as<float>(), index_at.as<int32_t>(), out.as<float>(), 4, width};
      OpRunner::expect_ok(gather_rows(runner.stream(), args));
      EXPECT_TRUE(tests::same_bits(runner.download<float>(out), expected));
    }
  }
}

struct CombineCase {
  CombineCase(int rows_in, int top_k_in, int hidden_in, DType dtype_in)
      : rows(rows_in), top_k(top_k_in), hidden(hidden_in), dtype(dtype_in) {
    std::mt19937_64 random(tests::test_seed());
    answers = tests::encode(tests::random_floats(random, size_t(rows) * top_k * hidden), dtype);
    gates = tests::random_floats(random, size_t(rows) * top_k);
    residual = tests::random_floats(random, size_t(rows) * hidden);
  }
  CombineArgs args(const void* answers_at, const float* gates_at, float* residual_at, int count) const {
    CombineArgs args;
    args.answers = answers_at;
    args.answer_dtype = dtype;
    args.gates = gates_at;
    args.residual = residual_at;
    args.rows = count;
    args.top_k = top_k;
    args.hidden = hidden;
    return args;
  }
  std::vector<float> run(OpRunner& runner, int first, int count, bool gated = true) const {
    const size_t slot_bytes = hidden * dtype_bytes(dtype);
    const Buffer answers_at = runner.upload(answers), gates_at = runner.upload(gates);
    const std::vector<float> part(residual.begin() + first * hidden,
                                  residual.begin() + (first + count) * hidden);
    const Buffer residual_at = runner.upload(part);
    OpRunner::expect_ok(
        combine(runner.stream(), args(answers_at.as<uint8_t>() + first * top_k * slot_bytes,
                                      gated ? gates_at.as<float>() + first * top_k : nullptr,
                                      residual_at.as<float>(), count)));
    return runner.download<float>(residual_at);
  }
  int rows, top_k, hidden;
  DType dtype;
  std::vector<uint8_t> answers;
  std::vector<float> gates, residual;
};

TEST(Combine, AgreesWithTheReference) {
  for (const DeviceKind kind : tests::device_kinds()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int hidden : kWidths) {
        for (const bool gated : {true, false}) {
          const CombineCase problem(4, gated ? 3 : 1, hidden, dtype);
          std::vector<float> expected = problem.residual;
          reference::combine(problem.args(problem.answers.data(),
                                          gated ? problem.gates.data() : nullptr, expected.data(), 4));
          OpRunner runner(kind, 2);
          // At most top_k fused steps and one addition on values near one.
          tests::expect_close(problem.run(runner, 0, 4, gated), expected, 1e-6f, 1e-6f);
        }
      }
    }
  }
}

TEST(Combine, ARowDependsOnItselfAlone) {
  const CombineCase problem(67, 4, 72, DType::kBF16);
  EXPECT_EQ(0, tests::count_differences(
                   [&](OpRunner& runner, int first, int count) {
                     return problem.run(runner, first, count);
                   },
                   problem.rows));
}

// The norm that is fused in has the bits of the op alone, on every device and instruction set.
TEST(Combine, NormsTheSumAsTheNormWould) {
  for (const int hidden : {7, 72, 1024}) {
    const CombineCase problem(67, 3, hidden, DType::kBF16);
    const RmsNormCase norm(1, hidden);
    const auto fused = [&](OpRunner& runner, int first, int count) {
      const size_t row_bytes = hidden * dtype_bytes(problem.dtype) * problem.top_k;
      const Buffer answers = runner.upload(problem.answers), gates = runner.upload(problem.gates);
      const Buffer weight = runner.upload(norm.weight);
      const Buffer residual = runner.upload(std::vector<float>(
          problem.residual.begin() + first * hidden, problem.residual.begin() + (first + count) * hidden));
      const Buffer normed = runner.allocate(residual.bytes());
      CombineArgs args =
          problem.args(answers.as<uint8_t>() + first * row_bytes,
                       gates.as<float>() + first * problem.top_k, residual.as<float>(), count);
      args.norm_weight = weight.as<float>();
      args.normed = normed.as<float>();
      args.norm_eps = 1e-5f;
      OpRunner::expect_ok(combine(runner.stream(), args));
      return runner.download<float>(normed);
    };
    EXPECT_EQ(0, tests::count_differences(fused, problem.rows));
    OpRunner runner(DeviceKind::kCpu, 1);
    const Buffer sum = runner.upload(problem.run(runner, 0, problem.rows));
    const Buffer weight = runner.upload(norm.weight), normed = runner.allocate(sum.bytes());
    RmsNormArgs args = norm.args(sum.as<float>(), weight.as<float>(), normed.as<float>(), problem.rows);
    args.x_stride = hidden;
    OpRunner::expect_ok(rms_norm(runner.stream(), args));
    EXPECT_TRUE(tests::same_bits(fused(runner, 0, problem.rows), runner.download<float>(normed)));
  }
}

// The order of the sum is part of the contract: ((0 + a) + b) + c, and only then the residual.
TEST(Combine, AddsInTheOrderOfTheRanking) {
  OpRunner runner(DeviceKind::kCpu, 1);
  std::vector<float> answers = {1.0f, 1e8f, -1e8f}, gates = {1, 1, 1}, residual = {0.5f};
  CombineArgs args;
  args.answers = answers.data();
  args.gates = gates.data();
  args.residual = residual.data();
  args.rows = args.hidden = 1;
  args.top_k = 3;
  OpRunner::expect_ok(combine(runner.stream(), args));
  EXPECT_EQ(residual[0], 0.5f);  // 1 is lost in 1e8, the residual is not
}

}  // namespace
}  // namespace brigade::kernels
