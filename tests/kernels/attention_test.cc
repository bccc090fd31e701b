#include "kernels/ops/attention.h"

#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/thread_pool.h"
#include "tests/kernels/attention_case.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;
using tests::AttentionCase;
using tests::AttentionShape;
using tests::OpRunner;

// Both sides read the same rounded cache, so the tolerance does not depend on its dtype: scores of
// |q| ~ 2 and 1000 positions, f32 sums against f64.
constexpr float kAbsolute = 4e-6f;
constexpr float kRelative = 2e-5f;

// Decode rows, prompt rows, first positions, segment edges.
void add_mixed_rows(AttentionCase& problem) {
  for (size_t sequence = 0; sequence < problem.lengths.size(); ++sequence) {
    const int length = problem.lengths[sequence];
    for (const int position : {0, 1, 15, 16, 17, 126, 127, 128, 129, 255, 256, 600, length - 2, length - 1}) {
      if (position >= 0 && position < length) problem.add_row(static_cast<int>(sequence), position);
    }
  }
}

TEST(PagedAttention, AgreesWithTheReference) {
  const std::vector<AttentionShape> shapes = {
      {4, 2, 64, 16, DType::kF32, 0},  {4, 4, 24, 16, DType::kF32, 0},
      {6, 2, 40, 8, DType::kBF16, 0},  {8, 1, 80, 32, DType::kF16, 0},
      {2, 2, 128, 16, DType::kBF16, 0}, {3, 1, 72, 7, DType::kF32, 0},
      {4, 2, 64, 16, DType::kF16, 100}, {4, 2, 16, 16, DType::kF32, 1},
      {4, 2, 96, 48, DType::kBF16, 129}, {2, 1, 1, 16, DType::kF32, 0}};
  for (const AttentionShape& shape : shapes) {
    AttentionCase problem(shape, {1, 130, 17, 700}, tests::test_seed());
    add_mixed_rows(problem);
    const std::vector<float> expected = problem.truth();
    for (const DeviceKind kind : tests::device_kinds()) {
      OpRunner runner(kind, 2);
      SCOPED_TRACE(testing::Message() << "heads " << shape.heads << "/" << shape.kv_heads << " x "
                                      << shape.head_dim << ", " << dtype_name(shape.dtype)
                                      << ", window " << shape.window);
      tests::expect_close(problem.run(runner, 0, problem.rows()), expected, kAbsolute, kRelative);
    }
  }
}

TEST(PagedAttention, ARowDependsOnItselfAlone) {
  for (const AttentionShape& shape :
       {AttentionShape{4, 2, 40, 16, DType::kBF16, 0}, AttentionShape{2, 1, 64, 16, DType::kF32, 90}}) {
    AttentionCase problem(shape, {60, 300, 17}, tests::test_seed());
    for (int i = 0; i < 67; ++i) {  // runs of one sequence, and single rows in between
      const int sequence = i % 20 < 12 ? 1 : i % 3;
      problem.add_row(sequence, (i * 37) % problem.lengths[sequence]);
    }
    EXPECT_EQ(0, tests::count_differences(
                     [&](OpRunner& runner, int first, int count) {
                       return problem.run(runner, first, count);
                     },
                     problem.rows()));
  }
}

// One row over long KV: threads share its segments, and the bits stay those of one thread.
TEST(PagedAttention, SplittingLongKvOverThreadsKeepsTheBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int window : {0, 1000}) {
      AttentionCase problem({3, 1, 80, 16, dtype, window}, {2600, 1500}, tests::test_seed());
      problem.add_row(0, 2599);
      problem.add_row(1, 1210);
      OpRunner one(DeviceKind::kCpu, 1);
      const std::vector<float> expected = problem.run(one, 0, 2);
      tests::expect_close(expected, problem.truth(), kAbsolute, kRelative);
      for (const int threads : {2, 3, 4}) {
        OpRunner runner(DeviceKind::kCpu, threads);
        EXPECT_TRUE(tests::same_bits(problem.run(runner, 0, 2), expected)) << threads << " threads";
        const std::vector<float> alone(expected.begin(), expected.begin() + problem.width());
        EXPECT_TRUE(tests::same_bits(problem.run(runner, 0, 1), alone)) << threads << " threads";
      }
    }
  }
}

// The planted fault: each thread sums its share of the positions, the shares are added.
TEST(PagedAttention, TheCheckCatchesPositionsSplitByThreadCount) {
  AttentionCase problem({1, 1, 16, 16, DType::kF32, 0}, {500}, tests::test_seed());
  for (int i = 0; i < 67; ++i) problem.add_row(0, 499 - i);
  const auto split = [&](OpRunner& runner, int first, int count) {
    const int parts = runner.threads();
    std::vector<float> out;
    for (int row = first; row < first + count; ++row) {
      const int seen = problem.row_position[row] + 1;
      std::vector<float> acc(16, 0.0f);
      float total = 0;
      for (int part = 0; part < parts; ++part) {
        std::vector<float> partial(16, 0.0f);
        float sum = 0;
        for (int p = seen * part / parts; p < seen * (part + 1) / parts; ++p) {
          const int64_t start = int64_t{problem.block_tables[p / 16]} * problem.view(nullptr).block_stride_bytes;
          const float* block = reinterpret_cast<const float*>(problem.cache.data() + start);
          const float* k = block + (p % 16) * 16;
          const float* v = k + 16 * 16;
          float score = 0;
          for (int i = 0; i < 16; ++i) score += problem.q[row * 16 + i] * k[i];
          const float weight = std::exp(score * 0.25f - 8);
          sum += weight;
          for (int i = 0; i < 16; ++i) partial[i] += weight * v[i];
        }
        total += sum;
        for (int i = 0; i < 16; ++i) acc[i] += partial[i];
      }
      for (const float value : acc) out.push_back(value / total);
    }
    return out;
  };
  EXPECT_GT(tests::count_differences(split, problem.rows()), 0);
}

// What a row must not see may hold anything: the bits with NaN there equal the bits with numbers.
TEST(PagedAttention, UnseenPositionsDoNotLeak) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const int window : {0, 33}) {
      AttentionCase problem({4, 2, 40, 16, dtype, window}, {300}, tests::test_seed());
      for (const int position : {0, 5, 127, 128, 140}) problem.add_row(0, position);
      AttentionCase other = problem;
      // Another content from position 141 on and, per row, nothing may change below its window.
      AttentionCase poisoned({4, 2, 40, 16, dtype, window}, {141}, tests::test_seed());
      poisoned.q = problem.q;
      poisoned.row_sequence = problem.row_sequence;
      poisoned.row_position = problem.row_position;
      OpRunner runner(DeviceKind::kCpu, 2);
      // Same block order for both: copy the written positions into a cache that is NaN elsewhere.
      poisoned.max_blocks = problem.max_blocks;
      poisoned.block_tables = problem.block_tables;
      poisoned.cache.assign(problem.cache.size(), 0xFF);
      const KvLayerView layer = problem.view(nullptr);
      const int64_t bytes = 40 * static_cast<int64_t>(dtype_bytes(dtype));
      for (int position = 0; position <= 140; ++position) {
        for (int plane = 0; plane < 4; ++plane) {
          const int64_t at = problem.block_tables[position / 16] * layer.block_stride_bytes +
                             (int64_t{plane} * 16 + position % 16) * bytes;
          std::memcpy(poisoned.cache.data() + at, problem.cache.data() + at, bytes);
        }
      }
      EXPECT_TRUE(tests::same_bits(poisoned.run(runner, 0, 5), problem.run(runner, 0, 5)));
      if (window > 0) {
        // Position 140 sees 108..140: below that, NaN too.
        std::memset(poisoned.cache.data() + problem.block_tables[0] * layer.block_stride_bytes, 0xFF,
                    layer.layer_bytes());
        const std::vector<float> last = problem.run(runner, 4, 1);
        EXPECT_TRUE(tests::same_bits(poisoned.run(runner, 4, 1), last));
      }
    }
  }
}

TEST(PagedAttention, NamesBadArguments) {
  AttentionCase problem({4, 2, 16, 16, DType::kF32, 0}, {20}, tests::test_seed());
  problem.add_row(0, 3);
  OpRunner runner(DeviceKind::kCpu, 1);
  std::vector<float> out(64), scratch(16);
  PagedAttentionArgs args = problem.sizes(1);
  args.q = problem.q.data();
  args.cache = problem.view(problem.cache.data());
  args.block_tables = problem.block_tables.data();
  args.row_sequence = problem.row_sequence.data();
  args.row_position = problem.row_position.data();
  args.out = out.data();
  const auto message = [&] { return std::string(paged_attention(runner.stream(), args).message()); };
  EXPECT_THAT(message(), HasSubstr("scratch is null"));
  args.scratch = scratch.data();
  args.scratch_bytes = 64;
  EXPECT_THAT(message(), HasSubstr("scratch_bytes is 64; this call needs"));
  args.heads = 3;
  EXPECT_THAT(message(), HasSubstr("heads is not a multiple"));
  args.heads = 4;
  args.scale = 0;
  EXPECT_THAT(message(), HasSubstr("scale must be positive"));
  args.cache.block_stride_bytes = 8;
  EXPECT_THAT(message(), HasSubstr("cache.block_stride_bytes is 8"));
}

}  // namespace
}  // namespace brigade::kernels
