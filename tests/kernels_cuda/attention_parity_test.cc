// Paged attention on CUDA against the CPU: equal bits whatever the rows, whatever the order of
// threads, whether a tile's segments are walked by one block or divided over many.
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/device_cuda.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/attention_case.h"
#include "tests/kernels_cuda/device_under_test.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

using tests::AttentionCase;
using tests::AttentionShape;
using tests::OpRunner;

constexpr DType kDtypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// The address sanitizer makes emulated threads some ten times slower: one case in three there.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
template <typename T>
std::vector<T> some_of(std::vector<T> all) {
  if (!kSanitized) return all;
  std::vector<T> some;
  for (size_t i = 1; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
}

std::string shape_text(const AttentionShape& s) {
  return std::string(dtype_name(s.dtype)) + ", heads " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " of " + std::to_string(s.head_dim) + ", block " +
         std::to_string(s.block_size) + ", window " + std::to_string(s.window);
}

// Empty, or the first element that differs.
std::string difference(const std::vector<float>& expected, const std::vector<float>& actual) {
  if (expected.size() != actual.size()) return "sizes differ";
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::memcmp(&expected[i], &actual[i], sizeof(float)) == 0) continue;
    if (expected[i] != expected[i] && actual[i] != actual[i]) continue;
    return "element " + std::to_string(i) + ": cuda " + std::to_string(actual[i]) + ", cpu " +
           std::to_string(expected[i]);
  }
  return "";
}

std::vector<float> rows_of(const std::vector<float>& all, const AttentionCase& c, int first,
                           int count) {
  const auto begin = all.begin() + int64_t{first} * c.width();
  return {begin, begin + int64_t{count} * c.width()};
}

// Overwrites what a sequence holds at a position with NaN, keys and values of all heads.
void poison(AttentionCase& c, int sequence, int position) {
  const KvLayerView layer = c.view(nullptr);
  const int64_t block = c.block_tables[sequence * c.max_blocks + position / layer.block_size];
  const int64_t row_bytes = layer.head_dim * static_cast<int64_t>(dtype_bytes(layer.dtype));
  for (int plane = 0; plane < 2 * layer.kv_heads; ++plane) {
    const int64_t row = int64_t{plane} * layer.block_size + position % layer.block_size;
    const auto at = c.cache.begin() + block * layer.block_stride_bytes + row * row_bytes;
    std::fill(at, at + row_bytes, uint8_t{0xFF});
  }
}

using Launcher = cudaError_t (*)(cudaStream_t, const PagedAttentionArgs&);

// All rows, with scratch for `slots` partial results; none: every tile is walked by one block.
std::vector<float> launch_with_slots(Launcher launcher, OpRunner& cuda, const AttentionCase& c,
                                     int slots) {
  const Buffer cache = cuda.upload(c.cache), tables = cuda.upload(c.block_tables);
  const Buffer q = cuda.upload(c.q), sequences = cuda.upload(c.row_sequence);
  const Buffer positions = cuda.upload(c.row_position);
  const Buffer out = cuda.upload(std::vector<float>(c.q.size(), NAN));
  const Buffer scratch = cuda.allocate(
      cuda::slot_table_bytes(c.rows()) +
      slots * cuda::slot_bytes(c.shape.heads, cuda::padded_head_dim(c.shape.head_dim)));
  PagedAttentionArgs args = c.sizes(c.rows());
  args.q = q.as<float>();
  args.cache = c.view(cache.data());
  args.block_tables = tables.as<int32_t>();
  args.row_sequence = sequences.as<int32_t>();
  args.row_position = positions.as<int32_t>();
  args.out = out.as<float>();
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  EXPECT_EQ(slots > 0, cuda::plan_attention(args).split > 1);
  const auto stream = static_cast<cudaStream_t>(static_cast<CudaStream&>(cuda.stream()).native());
  EXPECT_EQ(cudaSuccess, launcher(stream, args));
  return cuda.download<float>(out);
}

// All rows at once in each of `orders`; in the first of them also walked, and `batch` rows at a
// time.
void expect_parity(const AttentionCase& c, const std::vector<uint64_t>& orders, int batch) {
  SCOPED_TRACE(shape_text(c.shape) + ", rows " + std::to_string(c.rows()));
  OpRunner cpu(DeviceKind::kCpu, 1);
  const std::vector<float> expected = c.run(cpu, 0, c.rows());
  OpRunner cuda(tests::create_device_under_test());
  for (const uint64_t order : orders) {
    tests::use_thread_order(order);
    ASSERT_EQ("", difference(expected, c.run(cuda, 0, c.rows()))) << "thread order " << order;
  }
  tests::use_thread_order(orders.front());
  ASSERT_EQ("", difference(expected, launch_with_slots(cuda::paged_attention, cuda, c, 0)))
      << "walked";
  for (int first = 0; batch > 0 && first < c.rows(); first += batch) {
    const int count = std::min(batch, c.rows() - first);
    ASSERT_EQ("", difference(rows_of(expected, c, first, count), c.run(cuda, first, count)))
        << "rows " << first << " to " << first + count;
  }
}

// Three sequences: one that is prefilled in a chunk, decoded ones, and one that verifies drafts.
AttentionCase mixed_case(const AttentionShape& shape, int prefill_rows, uint64_t seed) {
  AttentionCase c(shape, {prefill_rows + 3, 140, 290}, seed);
  for (int i = 0; i < prefill_rows; ++i) c.add_row(0, 3 + i);
  c.add_row(1, 139);
  for (int i = 0; i < 3; ++i) c.add_row(2, 287 + i);
  return c;
}

class AttentionParity : public ::testing::Test {
 protected:
  uint64_t seed_ = tests::test_seed();
};

TEST_F(AttentionParity, EveryDtypeAndHeadSize) {
  for (const DType dtype : kDtypes) {
    for (const int head_dim : some_of<int>({1, 33, 64, 96, 80, 128, 256})) {
      const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
      expect_parity(mixed_case(shape, 7, seed_), {2}, 0);
    }
  }
}

TEST_F(AttentionParity, VeryLargeHeads) {
  for (const int head_dim : {576, 1024}) {
    const AttentionShape shape{
        .heads = 2, .kv_heads = 1, .head_dim = head_dim, .dtype = DType::kBF16};
    expect_parity(mixed_case(shape, 2, seed_), {2}, 0);
  }
}

TEST_F(AttentionParity, EveryOrderOfThreads) {
  for (const DType dtype : kDtypes) {
    const AttentionShape shape{.heads = 6, .kv_heads = 2, .head_dim = 48, .dtype = dtype};
    expect_parity(mixed_case(shape, 12, seed_), tests::thread_orders(), 0);
    AttentionCase decode(shape, {300}, seed_);
    decode.add_row(0, 299);
    expect_parity(decode, tests::thread_orders(), 0);
  }
}

TEST_F(AttentionParity, GroupsOfHeads) {
  for (const int heads : some_of<int>({1, 7, 2, 8, 40, 16, 12})) {
    const AttentionShape shape{
        .heads = heads, .kv_heads = 1, .head_dim = 32, .dtype = DType::kBF16};
    expect_parity(mixed_case(shape, 9, seed_), {2}, 3);
  }
}

TEST_F(AttentionParity, ManyRows) {
  for (const DType dtype : some_of<DType>({DType::kF32, DType::kBF16, DType::kF16})) {
    const AttentionShape shape{.heads = 4, .kv_heads = 1, .head_dim = 64, .dtype = dtype};
    expect_parity(mixed_case(shape, 61, seed_), {2}, 16);
  }
}

// Positions around the borders of blocks and segments, alone and together.
TEST_F(AttentionParity, Borders) {
  for (const int block_size : some_of<int>({1, 7, 16, 128, 200})) {
    const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = 16, .block_size = block_size};
    AttentionCase c(shape, {400, 129, 1}, seed_);
    for (const int position : {0, 1, 6, 7, 15, 16, 127, 128, 129, 255, 256, 257, 383, 384, 399}) {
      c.add_row(0, position);
    }
    c.add_row(1, 128);
    c.add_row(2, 0);
    expect_parity(c, {2}, 1);
  }
}

TEST_F(AttentionParity, Window) {
  for (const int window : some_of<int>({1, 5, 100, 128, 200})) {
    const AttentionShape shape{
        .heads = 4, .kv_heads = 2, .head_dim = 32, .dtype = DType::kF16, .window = window};
    AttentionCase c(shape, {520, 90}, seed_);
    for (const int position : {3, 130, 131, 132, 256, 500, 519}) c.add_row(0, position);
    for (int i = 80; i < 90; ++i) c.add_row(1, i);
    expect_parity(c, {2}, 1);
  }
}

// Rows of one tile see different positions: what only the others see does not reach a row. A NaN
// that is seen stays NaN.
TEST_F(AttentionParity, NanReachesOnlyRowsThatSeeIt) {
  for (const DType dtype : some_of<DType>({DType::kBF16, DType::kF32, DType::kF16})) {
    const AttentionShape shape{
        .heads = 4, .kv_heads = 2, .head_dim = 40, .dtype = dtype, .window = 20};
    AttentionCase c(shape, {180}, seed_);
    for (int position = 100; position < 180; ++position) c.add_row(0, position);
    poison(c, 0, 140);
    OpRunner cpu(DeviceKind::kCpu, 1);
    const std::vector<float> expected = c.run(cpu, 0, c.rows());
    for (int row = 0; row < c.rows(); ++row) {
      const bool sees = row >= 40 && row < 60;
      ASSERT_EQ(sees, std::isnan(expected[int64_t{row} * c.width()])) << "row " << row;
    }
    expect_parity(c, {2}, 5);
  }
}

TEST_F(AttentionParity, LongContext) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 32, .dtype = DType::kBF16};
  const int longest = kSanitized ? 1000 : 5000;
  AttentionCase c(shape, {longest, longest / 2}, seed_);
  c.add_row(0, longest - 2);
  c.add_row(0, longest - 1);
  c.add_row(1, longest / 2 - 1);
  expect_parity(c, {2}, 1);
}

// Rows that do not fit the scratch are walked, alone or all of them.
TEST_F(AttentionParity, ScratchOfAnySize) {
  const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = 24};
  AttentionCase c(shape, {700, 300, 500}, seed_);
  for (const auto& [sequence, position] :
       std::vector<std::pair<int, int>>{{0, 698}, {0, 699}, {1, 299}, {2, 499}}) {
    c.add_row(sequence, position);
  }
  OpRunner cpu(DeviceKind::kCpu, 1), cuda(tests::create_device_under_test());
  const std::vector<float> expected = c.run(cpu, 0, c.rows());
  for (const int slots : some_of<int>({0, 1, 5, 6, 12, 15, 18, 19, 40})) {
    EXPECT_EQ("", difference(expected, launch_with_slots(cuda::paged_attention, cuda, c, slots)))
        << slots << " slots";
  }
}

// As in a recorded graph: block tables are longer than any sequence, so that there are more blocks
// than segments. What stands behind a sequence's blocks is not looked at.
TEST_F(AttentionParity, LongerBlockTablesDoNotShow) {
  const AttentionShape shape{.heads = 8, .kv_heads = 2, .head_dim = 32, .dtype = DType::kBF16};
  const AttentionCase c = mixed_case(shape, 60, seed_);
  AttentionCase longer = c;
  longer.max_blocks = 40 * c.max_blocks;
  longer.block_tables.assign(c.lengths.size() * size_t(longer.max_blocks), -1);
  for (size_t sequence = 0; sequence < c.lengths.size(); ++sequence) {
    std::copy_n(c.block_tables.begin() + sequence * c.max_blocks, c.max_blocks,
                longer.block_tables.begin() + sequence * longer.max_blocks);
  }
  OpRunner cpu(DeviceKind::kCpu, 1), cuda(tests::create_device_under_test());
  EXPECT_EQ("", difference(c.run(cpu, 0, c.rows()), longer.run(cuda, 0, c.rows())));
  EXPECT_EQ("", difference(launch_with_slots(cuda::paged_attention_fast, cuda, c, 40),
                           launch_with_slots(cuda::paged_attention_fast, cuda, longer, 40)));
}

// Tensor cores: queries and weights have the cache's 8 or 11 bits.
void expect_close_on_tensor_cores(const AttentionCase& c, const std::vector<uint64_t>& orders) {
  SCOPED_TRACE(shape_text(c.shape) + ", rows " + std::to_string(c.rows()));
  const float tolerance = c.shape.dtype == DType::kBF16 ? 0.03f : 0.004f;
  OpRunner cpu(DeviceKind::kCpu, 1), cuda(tests::create_device_under_test());
  const std::vector<float> expected = c.run(cpu, 0, c.rows());
  std::vector<float> first;
  for (const uint64_t order : orders) {
    tests::use_thread_order(order);
    const std::vector<float> actual = launch_with_slots(cuda::paged_attention_fast, cuda, c, 40);
    EXPECT_NE("", difference(expected, actual)) << "not on tensor cores";
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::isnan(expected[i]), std::isnan(actual[i])) << "element " << i;
      if (std::isnan(expected[i])) continue;
      ASSERT_NEAR(expected[i], actual[i], tolerance) << "element " << i;
    }
    if (first.empty()) first = actual;
    ASSERT_EQ("", difference(first, actual)) << "thread order " << order;
  }
}

TEST_F(AttentionParity, TensorCores) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : some_of<int>({64, 33, 80, 128, 256})) {
      const AttentionShape shape{.heads = 4, .kv_heads = 1, .head_dim = head_dim, .dtype = dtype};
      expect_close_on_tensor_cores(mixed_case(shape, 45, seed_), {2});
    }
    const AttentionShape narrow{
        .heads = 6, .kv_heads = 2, .head_dim = 24, .dtype = dtype, .window = 70};
    expect_close_on_tensor_cores(mixed_case(narrow, 150, seed_), tests::thread_orders());
    const AttentionShape many_heads{.heads = 71, .kv_heads = 1, .head_dim = 16, .dtype = dtype};
    expect_close_on_tensor_cores(mixed_case(many_heads, 3, seed_), {1});
  }
}

TEST_F(AttentionParity, TensorCoresAndNan) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {20, 24}) {  // staged number by number, and 16 bytes at a time
      const AttentionShape shape{
          .heads = 2, .kv_heads = 1, .head_dim = head_dim, .dtype = dtype, .window = 20};
      AttentionCase c(shape, {180}, seed_);
      for (int position = 60; position < 180; ++position) c.add_row(0, position);
      poison(c, 0, 140);
      expect_close_on_tensor_cores(c, {2});
    }
  }
}

// A few rows, f32 or a large head: the other kernels, so equal bits.
TEST_F(AttentionParity, FastModeElsewhere) {
  OpRunner cpu(DeviceKind::kCpu, 1), cuda(tests::create_device_under_test());
  for (const auto& [dtype, head_dim, rows] : std::vector<std::tuple<DType, int, int>>{
           {DType::kBF16, 64, 1}, {DType::kF32, 64, 40}, {DType::kF16, 272, 40}}) {
    const AttentionShape shape{.heads = 4, .kv_heads = 2, .head_dim = head_dim, .dtype = dtype};
    const AttentionCase c = mixed_case(shape, rows, seed_);
    EXPECT_EQ("", difference(c.run(cpu, 0, c.rows()),
                             launch_with_slots(cuda::paged_attention_fast, cuda, c, 40)));
  }
}

// As on a GPU whose blocks may have 99 KiB.
TEST_F(AttentionParity, AHeadThatIsTooLargeForTheGpuIsNamed) {
  setenv("BRIGADE_EMULATION_SHARED_KB", "99", 1);
  OpRunner cuda(tests::create_device_under_test());
  AttentionCase c({.heads = 2, .kv_heads = 1, .head_dim = 1024}, {4}, seed_);
  c.add_row(0, 3);
  const Buffer memory = cuda.allocate(1 << 20);  // nothing runs
  const Buffer scratch = cuda.allocate(attention_scratch_bytes(cuda.device(), 1, 2, 1024));
  PagedAttentionArgs args = c.sizes(1);
  args.q = args.out = memory.as<float>();
  args.cache = c.view(memory.data());
  args.block_tables = args.row_sequence = args.row_position = memory.as<int32_t>();
  args.scratch = scratch.data();
  args.scratch_bytes = scratch.bytes();
  const absl::Status status = paged_attention(cuda.stream(), args);
  unsetenv("BRIGADE_EMULATION_SHARED_KB");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::string(status.message()),
            "paged_attention: a head of 1024 needs 171680 bytes of shared memory a block; " +
                cuda.device().name() + " has 101376");
}

TEST_F(AttentionParity, ScratchIsBounded) {
  EXPECT_LE(cuda::attention_scratch_bytes(8192, 128, 256), (size_t{64} << 20) + 8192 * 4);
  EXPECT_GE(cuda::attention_scratch_bytes(1, 1024, 1024), cuda::slot_bytes(1024, 1024));
}

}  // namespace
}  // namespace brigade::kernels
