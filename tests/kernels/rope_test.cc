// Rope with the write into the cache: against the reference on every device and cache dtype, hand
// values of both pairings, and prompt rows in chunks of any size.
#include <cstring>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/math.h"
#include "kernels/reference/reference.h"
#include "tests/kernels/op_runner.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;
using tests::OpRunner;

struct RopeShape {
  int heads, kv_heads, head_dim, rotary_dim;
  RopePairing pairing;
  DType dtype;
};

// One sequence of `rows` tokens at positions 0, 1, ...; q, k and v lie in one matrix, as a fused
// projection leaves them.
struct RopeCase {
  RopeCase(const RopeShape& shape_in, int rows_in) : shape(shape_in), rows(rows_in) {
    std::mt19937_64 random(tests::test_seed());
    stride = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    qkv = tests::random_floats(random, size_t(rows) * stride);
    const int half = shape.rotary_dim / 2;
    std::vector<double> frequencies;
    for (int i = 0; i < half; ++i) frequencies.push_back(1.0 / (1 + 3 * i));
    cos_table.resize(size_t(kMaxPositions) * half);
    sin_table.resize(cos_table.size());
    fill_rope_tables(frequencies.data(), half, kMaxPositions, 1.0, cos_table.data(), sin_table.data());
    for (int row = 0; row < rows; ++row) {
      positions.push_back(row);
      slots.push_back((row / kBlock * 7 % kBlocks) * kBlock + row % kBlock);  // scattered blocks
    }
  }

  RopeKvWriteArgs args(float* qkv_at, int count) const {
    RopeKvWriteArgs args;
    args.q = qkv_at;
    args.k = qkv_at + shape.heads * shape.head_dim;
    args.v = args.k + shape.kv_heads * shape.head_dim;
    args.q_stride = args.k_stride = args.v_stride = stride;
    args.rows = count;
    args.heads = shape.heads;
    args.rotary_dim = shape.rotary_dim;
    args.max_positions = kMaxPositions;
    args.pairing = shape.pairing;
    return args;
  }
  KvLayerView view(void* data) const {
    KvLayerView layer;
    layer.data = data;
    layer.dtype = shape.dtype;
    layer.num_blocks = kBlocks;
    layer.block_size = kBlock;
    layer.kv_heads = shape.kv_heads;
    layer.head_dim = shape.head_dim;
    layer.block_stride_bytes = static_cast<int64_t>(layer.layer_bytes());
    return layer;
  }
  size_t cache_bytes() const { return view(nullptr).layer_bytes() * kBlocks; }

  static constexpr int kMaxPositions = 64, kBlock = 4, kBlocks = 16;
  RopeShape shape;
  int rows, stride;
  std::vector<float> qkv, cos_table, sin_table;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

struct RopeResult {
  std::vector<float> q;
  std::vector<float> cache;  // widened; elements never written are NaN
};

RopeResult collect(const RopeCase& problem, const std::vector<float>& qkv, const uint8_t* cache) {
  RopeResult result;
  const int width = problem.shape.heads * problem.shape.head_dim;
  for (int row = 0; row < problem.rows; ++row) {
    const auto from = qkv.begin() + int64_t{row} * problem.stride;
    result.q.insert(result.q.end(), from, from + width);
  }
  const size_t elements = problem.cache_bytes() / dtype_bytes(problem.shape.dtype);
  for (size_t i = 0; i < elements; ++i) {
    result.cache.push_back(
        static_cast<float>(reference::read_element(cache, problem.shape.dtype, int64_t(i))));
  }
  return result;
}

RopeResult truth(const RopeCase& problem) {
  std::vector<float> qkv = problem.qkv;
  std::vector<uint8_t> cache(problem.cache_bytes(), 0xFF);
  RopeKvWriteArgs args = problem.args(qkv.data(), problem.rows);
  args.positions = problem.positions.data();
  args.slots = problem.slots.data();
  args.cos_table = problem.cos_table.data();
  args.sin_table = problem.sin_table.data();
  args.cache = problem.view(cache.data());
  reference::rope_kv_write(args);
  return collect(problem, qkv, cache.data());
}

// In chunks of at most `chunk` rows.
RopeResult run(OpRunner& runner, const RopeCase& problem, int chunk) {
  const Buffer qkv = runner.upload(problem.qkv), positions = runner.upload(problem.positions);
  const Buffer slots = runner.upload(problem.slots), cos = runner.upload(problem.cos_table);
  const Buffer sin = runner.upload(problem.sin_table);
  const Buffer cache = runner.upload(std::vector<uint8_t>(problem.cache_bytes(), 0xFF));
  for (int first = 0; first < problem.rows; first += chunk) {
    RopeKvWriteArgs args = problem.args(qkv.as<float>() + int64_t{first} * problem.stride,
                                        std::min(chunk, problem.rows - first));
    args.positions = positions.as<int32_t>() + first;
    args.slots = slots.as<int64_t>() + first;
    args.cos_table = cos.as<float>();
    args.sin_table = sin.as<float>();
    args.cache = problem.view(cache.data());
    OpRunner::expect_ok(rope_kv_write(runner.stream(), args));
  }
  return collect(problem, runner.download<float>(qkv), runner.download<uint8_t>(cache).data());
}

// NaN marks what was never written: it must be the same elements on both sides.
void expect_cache_close(const std::vector<float>& actual, const std::vector<float>& expected,
                        float absolute, float relative) {
  std::vector<float> written, wanted;
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::isnan(actual[i]), std::isnan(expected[i])) << "element " << i;
    if (std::isnan(expected[i])) continue;
    written.push_back(actual[i]);
    wanted.push_back(expected[i]);
  }
  ASSERT_FALSE(wanted.empty());
  tests::expect_close(written, wanted, absolute, relative);
}

TEST(RopeKvWrite, AgreesWithTheReference) {
  const std::vector<RopeShape> shapes = {
      {4, 2, 64, 64, RopePairing::kSplitHalves, DType::kF32},
      {2, 1, 24, 24, RopePairing::kSplitHalves, DType::kBF16},
      {3, 3, 40, 20, RopePairing::kSplitHalves, DType::kF16},
      {2, 2, 80, 32, RopePairing::kInterleaved, DType::kBF16},
      {1, 1, 6, 2, RopePairing::kInterleaved, DType::kF32},
      {1, 1, 8, 0, RopePairing::kSplitHalves, DType::kF32}};
  for (const RopeShape& shape : shapes) {
    const RopeCase problem(shape, 23);
    const RopeResult expected = truth(problem);
    // One rounding more in the kernel than in the reference can move a narrow value by one step.
    const float step = shape.dtype == DType::kF32 ? 1e-6f : shape.dtype == DType::kBF16 ? 8e-3f : 1e-3f;
    for (const DeviceKind kind : tests::device_kinds()) {
      OpRunner runner(kind, 2);
      const RopeResult actual = run(runner, problem, problem.rows);
      tests::expect_close(actual.q, expected.q, 5e-7f, 1e-6f);
      expect_cache_close(actual.cache, expected.cache, 5e-7f, step);
    }
  }
}

TEST(RopeKvWrite, ChunksThreadsAndInstructionSetsGiveEqualBits) {
  for (const RopeShape& shape : {RopeShape{4, 2, 40, 40, RopePairing::kSplitHalves, DType::kF16},
                                 RopeShape{4, 2, 40, 24, RopePairing::kInterleaved, DType::kBF16}}) {
    const RopeCase problem(shape, 60);
    OpRunner plain(DeviceKind::kCpu, 1);
    const RopeResult expected = run(plain, problem, problem.rows);
    for (const std::string& target : simd_targets()) {
      ASSERT_TRUE(force_simd_target(target));
      for (const int threads : {1, 3}) {
        OpRunner runner(DeviceKind::kCpu, threads);
        for (const int chunk : {1, 7, 60}) {
          const RopeResult actual = run(runner, problem, chunk);
          EXPECT_TRUE(tests::same_bits(actual.q, expected.q));
          EXPECT_TRUE(tests::same_bits(actual.cache, expected.cache));
        }
      }
      force_simd_target("");
    }
  }
}

TEST(RopeKvWrite, SlotMinusOneWritesNothing) {
  RopeCase problem({1, 1, 16, 16, RopePairing::kSplitHalves, DType::kF32}, 2);
  problem.slots = {-1, -1};
  OpRunner runner(DeviceKind::kCpu, 1);
  for (const float value : run(runner, problem, 2).cache) EXPECT_TRUE(std::isnan(value));
}

// huggingface/transformers and ml-explore/mlx-lm pull 512: the pairing is a property of the family.
// A unit vector on lane 0 turns into lane 2 (split halves of 4) or lane 1 (interleaved).
TEST(RopeKvWrite, PairingDecidesWhereTheEnergyGoes) {
  for (const RopePairing pairing : {RopePairing::kSplitHalves, RopePairing::kInterleaved}) {
    RopeCase problem({1, 1, 4, 4, pairing, DType::kF32}, 2);
    std::fill(problem.qkv.begin(), problem.qkv.end(), 0.0f);
    problem.qkv[problem.stride] = 1.0f;  // q of position 1
    OpRunner runner(DeviceKind::kCpu, 1);
    const std::vector<float> q = run(runner, problem, 2).q;
    const int partner = pairing == RopePairing::kSplitHalves ? 2 : 1;
    for (int lane = 0; lane < 4; ++lane) {
      const float expected = lane == 0 ? std::cos(1.0f) : lane == partner ? std::sin(1.0f) : 0.0f;
      EXPECT_NEAR(q[4 + lane], expected, 1e-6f) << "lane " << lane;
    }
  }
}

TEST(RopeKvWrite, NamesBadArguments) {
  const RopeCase problem({2, 1, 16, 16, RopePairing::kSplitHalves, DType::kF32}, 1);
  OpRunner runner(DeviceKind::kCpu, 1);
  std::vector<float> qkv = problem.qkv;
  std::vector<uint8_t> cache(problem.cache_bytes());
  RopeKvWriteArgs args = problem.args(qkv.data(), 1);
  args.cache = problem.view(cache.data());
  const auto message = [&] { return std::string(rope_kv_write(runner.stream(), args).message()); };
  EXPECT_THAT(message(), HasSubstr("positions is null"));
  args.rotary_dim = 3;
  EXPECT_THAT(message(), HasSubstr("rotary_dim is odd"));
  args.rotary_dim = 18;
  EXPECT_THAT(message(), HasSubstr("rotary_dim is above head_dim"));
  args.cache.dtype = DType::kI32;
  EXPECT_THAT(message(), HasSubstr("cache.dtype"));
}

}  // namespace
}  // namespace brigade::kernels
