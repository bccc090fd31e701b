// Matrix products: equal bits with the scalar program of the canonical order for every number of
// rows, format, odd shape, thread count and instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "kernels/cpu/gemm_tiles.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/path_counters.h"
#include "tests/kernels/gemm_support.h"
#include "tests/support/test_env.h"

namespace brigade::kernels::tests {
namespace {

constexpr int kMaxRows = 67;
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Problem {
  Problem(DType dtype, int64_t outputs, int64_t k, int rows, uint64_t seed)
      : weights(dtype, outputs, k, seed),
        x(random_rows(static_cast<size_t>(rows * k), seed + 1)),
        want(reference::canonical_matmul(x.data(), rows, weights.plain())) {}
  TestMatrix weights;
  std::vector<float> x;
  std::vector<float> want;
};

// y of the first `rows` rows, compact.
std::vector<float> run(Stream& stream, const Problem& problem, int rows) {
  const PackedMatrix weights = problem.weights.packed();
  std::vector<float> y(static_cast<size_t>(rows * weights.outputs), NAN);
  const absl::Status status = matmul(stream, {.x = problem.x.data(),
                                              .weights = weights,
                                              .y = y.data(),
                                              .x_stride = weights.k,
                                              .y_stride = weights.outputs,
                                              .rows = rows});
  EXPECT_TRUE(status.ok()) << status;
  return y;
}

TEST(Matmul, BitsEqualTheScalarProgram) {
  std::vector<CpuDevice> devices;
  for (const int threads : {1, 2, 3}) devices.push_back(make_device(DeviceKind::kCpu, threads));
  const uint64_t seed = ::brigade::tests::test_seed();
  SCOPED_TRACE(::brigade::tests::replay_note("matmul_test", seed));
  int calls = 0;
  for (const DType dtype : kDTypes) {
    for (const int64_t k : {1, 7, 255, 256, 257, 300, 600}) {
      for (const int64_t outputs : {1, 5, 16, 17, 101}) {
        const Problem problem(dtype, outputs, k, kMaxRows, seed * 977 + k * 131 + outputs);
        for (const std::string& set : simd_targets()) {
          const UseInstructionSet use(set);
          for (int rows = 1; rows <= kMaxRows; ++rows) {
            CpuDevice& device = devices[(rows + outputs) % devices.size()];
            const std::vector<float> y = run(*device.stream, problem, rows);
            ASSERT_TRUE(bits_equal(y, std::span(problem.want).first(y.size()), outputs))
                << dtype_name(dtype) << " k " << k << " outputs " << outputs << " rows " << rows
                << " threads " << device.device->num_threads() << " " << set;
            ++calls;
          }
        }
      }
    }
  }
  printf("%d products compared\n", calls);
}

// Large enough for several pieces a thread, several chunks of rows and all lanes.
TEST(Matmul, ManyPiecesAndChunksOfRows) {
  const uint64_t seed = ::brigade::tests::test_seed();
  SCOPED_TRACE(::brigade::tests::replay_note("matmul_test", seed));
  for (const DType dtype : kDTypes) {
    const Problem problem(dtype, 1000, 515, 205, seed + 7);
    for (const std::string& set : simd_targets()) {
      const UseInstructionSet use(set);
      for (const int threads : {1, 2, 3}) {
        CpuDevice device = make_device(DeviceKind::kCpu, threads);
        for (const int rows : {1, 2, 3, 6, 7, 12, 13, 49, 97, 205}) {
          const std::vector<float> y = run(*device.stream, problem, rows);
          ASSERT_TRUE(bits_equal(y, std::span(problem.want).first(y.size()), 1000))
              << dtype_name(dtype) << " rows " << rows << " threads " << threads << " " << set;
        }
      }
    }
  }
}

TEST(Matmul, EveryInstructionSetReallyRuns) {
  ASSERT_FALSE(simd_targets().empty());
  for (const std::string& set : simd_targets()) {
    const UseInstructionSet use(set);
    const int rows = cpu::tile_set(WeightFormat::kF32Panels16).max_rows;
    EXPECT_EQ(rows, set == "AVX3" ? 12 : 6) << set;
    printf("%s: tiles of up to %d rows\n", set.c_str(), rows);
  }
}

TEST(Matmul, BiasAccumulateAndStrides) {
  constexpr int kRows = 9, kOutputs = 21, kK = 300, kXStride = 307, kYStride = 40;
  const Problem problem(DType::kBF16, kOutputs, kK, kRows, 5);
  const std::vector<float> bias = random_rows(kOutputs, 6);
  const std::vector<float> before = random_rows(kRows * kYStride, 7);
  std::vector<float> x(kRows * kXStride, NAN);
  for (int r = 0; r < kRows; ++r) {
    std::copy_n(&problem.x[r * kK], kK, &x[r * kXStride]);
  }
  CpuDevice device = make_device(DeviceKind::kCpu, 2);
  for (const bool with_bias : {false, true}) {
    for (const bool accumulate : {false, true}) {
      std::vector<float> y = before;
      std::vector<float> want = before;
      for (int r = 0; r < kRows; ++r) {
        for (int n = 0; n < kOutputs; ++n) {
          float value = problem.want[r * kOutputs + n];
          if (with_bias) value += bias[n];
          float& at = want[r * kYStride + n];
          at = accumulate ? at + value : value;
        }
      }
      ASSERT_TRUE(matmul(*device.stream, {.x = x.data(),
                                          .weights = problem.weights.packed(),
                                          .bias = with_bias ? bias.data() : nullptr,
                                          .y = y.data(),
                                          .x_stride = kXStride,
                                          .y_stride = kYStride,
                                          .rows = kRows,
                                          .accumulate = accumulate})
                      .ok());
      EXPECT_TRUE(bits_equal(y, want, kYStride)) << with_bias << accumulate;
    }
  }
}

// The comparison above must see a product whose order of additions differs.
TEST(Matmul, PlantedSplitOfKOverThreadsIsCaught) {
  constexpr int64_t kOutputs = 64, kK = 512;
  constexpr int kRows = 8;
  const Problem problem(DType::kF32, kOutputs, kK, kRows, 11);
  // Two threads take one half of K each; the halves are added. Halves end at a block's end, so only
  // splitting a block (at 128 here) changes the sum.
  const auto split_over_threads = [&](int64_t split) {
    std::vector<float> halves[2] = {std::vector<float>(problem.want.size()),
                                    std::vector<float>(problem.want.size())};
    ThreadPool pool(2);
    pool.parallel_for(2, [&](int half, int) {
      const int64_t first = half == 0 ? 0 : split, last = half == 0 ? split : kK;
      for (int r = 0; r < kRows; ++r) {
        for (int64_t n = 0; n < kOutputs; ++n) {
          float sum = 0;
          for (int64_t k = first; k < last; ++k) {
            sum = std::fma(problem.x[r * kK + k], problem.weights.plain().at(n, k), sum);
          }
          halves[half][r * kOutputs + n] = sum;
        }
      }
    });
    for (size_t i = 0; i < halves[0].size(); ++i) halves[0][i] += halves[1][i];
    return halves[0];
  };
  const size_t caught = count_bit_differences(split_over_threads(128), problem.want, nullptr);
  printf("split at 128: %zu of %zu values differ\n", caught, problem.want.size());
  EXPECT_GT(caught, problem.want.size() / 4);
  EXPECT_EQ(count_bit_differences(split_over_threads(256), problem.want, nullptr), 0u)
      << "a split at the end of a block is the canonical order";
}

TEST(Matmul, CountsEveryRowPath) {
  CpuDevice device = make_device(DeviceKind::kCpu, 1);
  const Problem problem(DType::kF32, 16, 16, 20, 3);
  reset_path_counts();
  for (const int rows : {1, 2, 3, 8, 9, 20, 20}) run(*device.stream, problem, rows);
  EXPECT_EQ(path_count(CountedKernel::kMatmul, RowPath::kOne), 1u);
  EXPECT_EQ(path_count(CountedKernel::kMatmul, RowPath::kTwo), 1u);
  EXPECT_EQ(path_count(CountedKernel::kMatmul, RowPath::kFew), 2u);
  EXPECT_EQ(path_count(CountedKernel::kMatmul, RowPath::kMany), 3u);
}

TEST(Matmul, RefusesWhatCannotBe) {
  CpuDevice device = make_device(DeviceKind::kCpu, 1);
  const Problem problem(DType::kF32, 16, 16, 2, 3);
  std::vector<float> y(32);
  const MatmulArgs good{.x = problem.x.data(),
                        .weights = problem.weights.packed(),
                        .y = y.data(),
                        .x_stride = 16,
                        .y_stride = 16,
                        .rows = 2};
  const auto message = [&](auto change) {
    MatmulArgs args = good;
    change(args);
    return std::string(matmul(*device.stream, args).message());
  };
  EXPECT_EQ(message([](MatmulArgs&) {}), "");
  EXPECT_EQ(message([](MatmulArgs& a) { a.rows = 0; }), "");
  EXPECT_NE(message([](MatmulArgs& a) { a.rows = -1; }).find("rows"), std::string::npos);
  EXPECT_NE(message([](MatmulArgs& a) { a.x = nullptr; }).find("x is null"), std::string::npos);
  EXPECT_NE(message([](MatmulArgs& a) { a.y = nullptr; }).find("y is null"), std::string::npos);
  EXPECT_NE(message([](MatmulArgs& a) { a.x_stride = 15; }).find("x_stride"), std::string::npos);
  EXPECT_NE(message([](MatmulArgs& a) { a.y_stride = 15; }).find("y_stride"), std::string::npos);
  EXPECT_NE(message([](MatmulArgs& a) { a.weights.k = 0; }).find("weights.k"), std::string::npos);
}

}  // namespace
}  // namespace brigade::kernels::tests
