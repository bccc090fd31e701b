// The grouped expert FFN: close to double precision, bits equal to the scalar program of the
// canonical order, rows independent of their neighbours, experts without rows, both CPU devices.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "kernels/cpu/simd_targets.h"
#include "kernels/ops/bf16.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/path_counters.h"
#include "kernels/reference/expert_ffn.h"
#include "tests/kernels/gemm_support.h"
#include "tests/support/test_env.h"

namespace brigade::kernels::tests {
namespace {

struct TestExpert {
  TestExpert(DType dtype, int hidden, int ffn, uint64_t seed)
      : gate(dtype, ffn, hidden, seed),
        up(dtype, ffn, hidden, seed + 1),
        down(dtype, hidden, ffn, seed + 2),
        gate_up(2 * packed_bytes(weight_format(dtype), ffn, hidden)) {
    pack_gate_up(weight_format(dtype), gate.bytes(), up.bytes(), ffn, hidden, gate_up.data());
    weights.gate_up = {gate_up.data(), weight_format(dtype), 2 * padded_outputs(ffn), hidden};
    weights.down = down.packed();
    weights.ffn = ffn;
  }
  std::vector<float> canonical(const float* x) const {
    return reference::canonical_expert_ffn_row(x, gate.plain(), up.plain(), down.plain());
  }
  std::vector<double> exact(const float* x) const {
    return reference::expert_ffn_row(x, gate.plain(), up.plain(), down.plain());
  }
  TestMatrix gate, up, down;
  AlignedBytes gate_up;
  ExpertWeights weights;
};

// A layer of experts and a batch: row i of the lists goes through groups in order of expert.
struct Layer {
  Layer(DType dtype, int hidden, int ffn, std::vector<int> counts, uint64_t seed)
      : hidden(hidden), ffn(ffn), counts(counts) {
    total = std::accumulate(counts.begin(), counts.end(), 0);
    int first = 0;
    for (size_t e = 0; e < counts.size(); ++e) {
      experts.push_back(std::make_unique<TestExpert>(dtype, hidden, ffn, seed + 10 * e));
      groups.push_back({experts[e]->weights, first, counts[e]});
      first += counts[e];
    }
    tokens = std::max(1, total);
    x = random_rows(static_cast<size_t>(tokens) * hidden, seed + 5);
    std::mt19937 generator(static_cast<uint32_t>(seed));
    row_index.resize(total);
    for (int32_t& row : row_index) row = static_cast<int32_t>(generator() % tokens);
    out_index.resize(total);
    std::iota(out_index.begin(), out_index.end(), 0);
    std::shuffle(out_index.begin(), out_index.end(), generator);
  }
  std::vector<float> canonical() const {
    std::vector<float> want(static_cast<size_t>(total) * hidden);
    for (size_t e = 0; e < counts.size(); ++e) {
      for (int i = groups[e].first; i < groups[e].first + counts[e]; ++i) {
        const std::vector<float> row = experts[e]->canonical(&x[row_index[i] * hidden]);
        std::copy(row.begin(), row.end(), &want[out_index[i] * hidden]);
      }
    }
    return want;
  }
  ExpertFfnArgs args(void* out, DType out_dtype, void* scratch, size_t scratch_bytes) const {
    return {.x = x.data(),
            .row_index = row_index.data(),
            .out_index = out_index.data(),
            .out = out,
            .out_dtype = out_dtype,
            .groups = groups.data(),
            .num_groups = static_cast<int>(groups.size()),
            .total = total,
            .hidden = hidden,
            .scratch = scratch,
            .scratch_bytes = scratch_bytes};
  }
  int hidden, ffn, total = 0, tokens = 0;
  std::vector<int> counts;
  std::vector<std::unique_ptr<TestExpert>> experts;
  std::vector<ExpertGroup> groups;
  std::vector<float> x;
  std::vector<int32_t> row_index, out_index;
};

std::vector<float> run(Stream& stream, const Layer& layer) {
  std::vector<float> out(static_cast<size_t>(layer.total) * layer.hidden, NAN);
  const size_t bytes =
      expert_ffn_scratch_bytes(stream.device(), layer.total, layer.hidden, layer.ffn);
  const AlignedBytes scratch(bytes);
  std::memset(scratch.data(), 0xff, bytes);
  const absl::Status status =
      expert_ffn(stream, layer.args(out.data(), DType::kF32, scratch.data(), bytes));
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

TEST(ExpertFfn, CloseToDoublePrecision) {
  CpuDevice device = make_device(DeviceKind::kCpu, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Layer layer(dtype, 300, 520, {3, 1}, 21);
    const std::vector<float> out = run(*device.stream, layer);
    double worst = 0;
    for (int i = 0; i < layer.total; ++i) {
      const std::vector<double> want =
          layer.experts[i < 3 ? 0 : 1]->exact(&layer.x[layer.row_index[i] * layer.hidden]);
      double largest = 0;
      for (const double value : want) largest = std::max(largest, std::fabs(value));
      for (int n = 0; n < layer.hidden; ++n) {
        const double got = out[layer.out_index[i] * layer.hidden + n];
        worst = std::max(worst, std::fabs(got - want[n]) / largest);
      }
    }
    // Two chained sums of at most 256 f32 terms and one exp at 4e-7: a few hundred roundings of
    // 6e-8 that mostly cancel. Seen: below 1e-6 of the row's largest value.
    EXPECT_LT(worst, 5e-6) << dtype_name(dtype);
    printf("%s: largest error %.1e of the row's largest value\n", dtype_name(dtype), worst);
  }
}

TEST(ExpertFfn, BitsEqualTheScalarProgram) {
  const uint64_t seed = ::brigade::tests::test_seed();
  SCOPED_TRACE(::brigade::tests::replay_note("expert_ffn_test", seed));
  const std::vector<std::vector<int>> batches = {{1, 0, 1},  {0, 2, 0},  {5, 0, 8},
                                                 {40, 1, 0}, {0, 0, 97}, {13, 7, 27}};
  struct Shape {
    int hidden, ffn;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Shape shape : {Shape{33, 17}, Shape{64, 300}, Shape{257, 101}}) {
      for (const std::vector<int>& counts : batches) {
        const Layer layer(dtype, shape.hidden, shape.ffn, counts, seed * 31 + counts[0]);
        const std::vector<float> want = layer.canonical();
        for (const std::string& set : simd_targets()) {
          const UseInstructionSet use(set);
          for (const int threads : {1, 2, 3}) {
            CpuDevice device = make_device(DeviceKind::kCpu, threads);
            ASSERT_TRUE(bits_equal(run(*device.stream, layer), want, layer.hidden))
                << dtype_name(dtype) << " hidden " << shape.hidden << " ffn " << shape.ffn
                << " counts " << ::testing::PrintToString(counts) << " threads " << threads << " "
                << set;
          }
        }
      }
    }
  }
}

// Shapes with many pieces: the whole batch equals each row alone.
TEST(ExpertFfn, RowsDoNotSeeTheirNeighbours) {
  const Layer layer(DType::kBF16, 512, 704, {1, 0, 2, 3, 0, 9, 30, 130}, 77);
  CpuDevice together = make_device(DeviceKind::kCpu, 3);
  CpuDevice alone = make_device(DeviceKind::kCpu, 1);
  const std::vector<float> out = run(*together.stream, layer);
  const size_t bytes = expert_ffn_scratch_bytes(*alone.device, 1, layer.hidden, layer.ffn);
  const AlignedBytes scratch(bytes);
  std::vector<float> row(layer.hidden);
  for (const ExpertGroup& group : layer.groups) {
    for (int i = group.first; i < group.first + group.count; ++i) {
      const ExpertGroup single{group.weights, 0, 1};
      ASSERT_TRUE(expert_ffn(*alone.stream, {.x = &layer.x[layer.row_index[i] * layer.hidden],
                                             .out = row.data(),
                                             .groups = &single,
                                             .num_groups = 1,
                                             .total = 1,
                                             .hidden = layer.hidden,
                                             .scratch = scratch.data(),
                                             .scratch_bytes = bytes})
                      .ok());
      ASSERT_TRUE(
          bits_equal(std::span(out).subspan(layer.out_index[i] * layer.hidden, layer.hidden), row,
                     layer.hidden))
          << "row " << i;
    }
  }
}

TEST(ExpertFfn, AnswersInBf16AreTheF32AnswersRounded) {
  const Layer layer(DType::kF32, 100, 60, {2, 5}, 9);
  CpuDevice device = make_device(DeviceKind::kCpu, 2);
  const std::vector<float> wide = run(*device.stream, layer);
  const size_t bytes =
      expert_ffn_scratch_bytes(*device.device, layer.total, layer.hidden, layer.ffn);
  const AlignedBytes scratch(bytes);
  std::vector<uint16_t> out(wide.size());
  ASSERT_TRUE(
      expert_ffn(*device.stream, layer.args(out.data(), DType::kBF16, scratch.data(), bytes)).ok());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], bf16_from_f32(wide[i])) << i;
}

TEST(ExpertFfn, SameBitsOnTheAsyncDevice) {
  const Layer layer(DType::kBF16, 128, 96, {4, 0, 1}, 13);
  CpuDevice plain = make_device(DeviceKind::kCpu, 2);
  const std::vector<float> want = run(*plain.stream, layer);
  CpuDevice async = make_device(DeviceKind::kCpuAsync, 2);
  Device& device = *async.device;
  Stream& stream = *async.stream;
  std::vector<Buffer> buffers;
  const auto upload = [&](const void* from, size_t bytes) {
    absl::StatusOr<Buffer> buffer = Buffer::allocate(device, bytes);
    EXPECT_TRUE(buffer.ok());
    EXPECT_TRUE(stream.copy_to_device(buffer->data(), from, bytes).ok());
    buffers.push_back(*std::move(buffer));
    return buffers.back().data();
  };
  std::vector<ExpertGroup> groups = layer.groups;
  for (ExpertGroup& group : groups) {
    for (PackedMatrix* matrix : {&group.weights.gate_up, &group.weights.down}) {
      matrix->data = upload(matrix->data, packed_bytes(matrix->format, matrix->outputs, matrix->k));
    }
  }
  std::vector<float> out(want.size(), NAN);
  const size_t bytes = expert_ffn_scratch_bytes(device, layer.total, layer.hidden, layer.ffn);
  const std::vector<uint8_t> poison(bytes, 0xff);
  ExpertFfnArgs args = layer.args(upload(out.data(), out.size() * 4), DType::kF32,
                                  upload(poison.data(), bytes), bytes);
  args.x = static_cast<const float*>(upload(layer.x.data(), layer.x.size() * 4));
  args.row_index = static_cast<const int32_t*>(upload(layer.row_index.data(), layer.total * 4));
  args.out_index = static_cast<const int32_t*>(upload(layer.out_index.data(), layer.total * 4));
  args.groups = groups.data();
  ASSERT_TRUE(expert_ffn(stream, args).ok());
  ASSERT_TRUE(stream.copy_to_host(out.data(), args.out, out.size() * 4).ok());
  ASSERT_TRUE(stream.synchronize(absl::Now() + absl::Seconds(30)).ok());
  EXPECT_TRUE(bits_equal(out, want, layer.hidden));
}

TEST(ExpertFfn, CountsEveryRowPath) {
  CpuDevice device = make_device(DeviceKind::kCpu, 1);
  reset_path_counts();
  run(*device.stream, Layer(DType::kF32, 16, 16, {1, 2, 0, 3, 8, 9, 1}, 3));
  EXPECT_EQ(path_count(CountedKernel::kExpertFfn, RowPath::kOne), 2u);
  EXPECT_EQ(path_count(CountedKernel::kExpertFfn, RowPath::kTwo), 1u);
  EXPECT_EQ(path_count(CountedKernel::kExpertFfn, RowPath::kFew), 2u);
  EXPECT_EQ(path_count(CountedKernel::kExpertFfn, RowPath::kMany), 1u);
}

TEST(ExpertFfn, RefusesWhatCannotBe) {
  CpuDevice device = make_device(DeviceKind::kCpu, 1);
  const Layer layer(DType::kF32, 32, 48, {2, 1}, 3);
  const size_t bytes =
      expert_ffn_scratch_bytes(*device.device, layer.total, layer.hidden, layer.ffn);
  const AlignedBytes scratch(bytes);
  std::vector<float> out(layer.total * layer.hidden);
  std::vector<ExpertGroup> groups = layer.groups;
  const auto message = [&](auto change) {
    groups = layer.groups;
    ExpertFfnArgs args = layer.args(out.data(), DType::kF32, scratch.data(), bytes);
    args.groups = groups.data();
    change(args);
    return std::string(expert_ffn(*device.stream, args).message());
  };
  using Args = ExpertFfnArgs&;
  const auto names = [&](auto change, const char* word) {
    EXPECT_NE(message(change).find(word), std::string::npos) << word << ": " << message(change);
  };
  EXPECT_EQ(message([](Args) {}), "");
  names([](Args a) { a.scratch_bytes -= 1; }, "scratch_bytes");
  names([](Args a) { a.out_dtype = DType::kF16; }, "out_dtype");
  names([](Args a) { a.x = nullptr; }, "x is null");
  names([&](Args) { groups[1].count = 2; }, "groups[1]");
  names([&](Args) { groups[0].first = -1; }, "groups[0]");
  names([&](Args) { groups[0].weights.down.k = 47; }, "down");
  names([&](Args) { groups[0].weights.gate_up.outputs = 48; }, "gate_up");
}

}  // namespace
}  // namespace brigade::kernels::tests
