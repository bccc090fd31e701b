// Rows that lack an expert in the middle of a pass: they and what follows in their sequences are
// named, nobody else's bits change, and computed again they are as if nothing had happened.
#include <cmath>
#include <cstring>
#include <utility>

#include "expert_parallel/exchange/local_exchange.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/model_runner.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using expert_parallel::Exchange;
using expert_parallel::LayerRows;
using testing::ElementsAre;

// Which rows lack an expert, by MoE layer; shared with the exchange.
struct Script {
  std::vector<std::vector<int32_t>> missing;
  int layers_begun = 0;
};

// The local exchange, with answers taken away as an exchange does whose experts have no holder.
class ParkingExchange : public Exchange {
 public:
  ParkingExchange(std::unique_ptr<Exchange> inner, Script* script, int hidden)
      : inner_(std::move(inner)), script_(script), hidden_(hidden) {}
  absl::Status begin(kernels::Stream& stream, const LayerRows& layer,
                     kernels::Waker* waker) override {
    ++script_->layers_begun;
    stream_ = &stream;
    parked_.clear();
    const auto moe_layer = static_cast<size_t>(layer.moe_layer);
    if (moe_layer < script_->missing.size()) parked_ = script_->missing[moe_layer];
    return inner_->begin(stream, layer, waker);
  }
  absl::StatusOr<bool> poll() override {
    const absl::StatusOr<bool> done = inner_->poll();
    if (!done.ok() || !*done) return done;
    const size_t bytes = static_cast<size_t>(hidden_) * sizeof(float);
    for (const int32_t row : parked_) {  // the first of its answers
      auto* answers = static_cast<std::byte*>(const_cast<void*>(inner_->answers()));
      const absl::Status filled =
          stream_->fill_bytes(answers + static_cast<size_t>(row) * 2 * bytes, 0xff, bytes);
      if (!filled.ok()) return filled;
    }
    return true;
  }
  const void* answers() const override { return inner_->answers(); }
  kernels::DType answer_dtype() const override { return inner_->answer_dtype(); }
  std::span<const int32_t> parked_rows() const override { return parked_; }
  uint64_t view_version() const override { return 7; }

 private:
  const std::unique_ptr<Exchange> inner_;
  Script* const script_;
  const int hidden_;
  kernels::Stream* stream_ = nullptr;
  std::vector<int32_t> parked_;
};

class ForwardPassParking : public ::testing::TestWithParam<kernels::DeviceKind> {
 protected:
  void SetUp() override {
    plain_ = open({});
    parking_ = open([this](kernels::Device& device, const expert_parallel::ExpertShard& shard,
                           int max_rows) -> absl::StatusOr<std::unique_ptr<Exchange>> {
      auto inner = expert_parallel::make_local_exchange(device, shard, max_rows);
      if (!inner.ok()) return inner.status();
      return std::make_unique<ParkingExchange>(*std::move(inner), &script_,
                                               shard.geometry().hidden);
    });
  }
  std::unique_ptr<ModelRunner> open(runtime::ExchangeFactory make_exchange) {
    auto runner = ModelRunner::open(source_dir() + "/tests/data/golden/mixtral_top2",
                                    {.device = GetParam(), .make_exchange = make_exchange});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }
  static ModelRunner::Rows step(ModelRunner& runner,
                                const std::vector<ModelRunner::Piece>& pieces) {
    auto rows = runner.step(pieces);
    EXPECT_TRUE(rows.ok()) << rows.status();
    return *std::move(rows);
  }
  static void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  }
  const runtime::StepModel& pass() { return *parking_->model().passes[0]; }

  Script script_;
  std::unique_ptr<ModelRunner> plain_, parking_;
};

TEST_P(ForwardPassParking, TakesOutRowsAndWhatFollowsThemAndNothingElse) {
  for (ModelRunner* runner : {plain_.get(), parking_.get()}) {
    step(*runner, {{0, {5, 9, 3}}, {1, {7, 7}}, {2, {30, 21, 4, 6}}});
  }
  EXPECT_TRUE(pass().parked_rows().empty());
  EXPECT_EQ(pass().cluster_version(), 7u);
  // Rows 0-2, 3-6, 7-9; 10 is a decode.
  const std::vector<ModelRunner::Piece> pieces = {
      {0, {11, 2, 8}}, {1, {13, 12, 10, 1}}, {2, {40, 41, 42}}, {3, {5}}};
  const ModelRunner::Rows expected = step(*plain_, pieces);
  script_.missing = {{4}, {9}};
  const ModelRunner::Rows partly = step(*parking_, pieces);
  EXPECT_THAT(pass().parked_rows(), ElementsAre(4, 5, 6, 9));
  for (const size_t row : {0, 1, 2, 3, 7, 8, 10}) expect_same_bits(partly[row], expected[row]);
  // In the first layer row 4 lost its answer, then 5 and 6 attended to it.
  for (const size_t row : {4, 5, 6, 9}) EXPECT_TRUE(std::isnan(partly[row][0])) << row;
  // Again, in other pieces: over the slots that hold what the parked rows left.
  script_.missing.clear();
  parking_->restart(1, 3);
  parking_->restart(2, 6);
  const ModelRunner::Rows first = step(*parking_, {{1, {12}}, {2, {42}}});
  EXPECT_TRUE(pass().parked_rows().empty());
  const ModelRunner::Rows second = step(*parking_, {{1, {10, 1}}});
  expect_same_bits(first[0], expected[4]);
  expect_same_bits(first[1], expected[9]);
  expect_same_bits(second[0], expected[5]);
  expect_same_bits(second[1], expected[6]);
  // Each row counts once.
  EXPECT_EQ(pass().expert_rows(), plain_->model().passes[0]->expert_rows());
}

TEST_P(ForwardPassParking, AStepWithoutRowsLeftEndsEarly) {
  script_.missing = {{0, 3}};
  const ModelRunner::Rows rows = step(*parking_, {{0, {5, 9, 3}}, {1, {7, 7}}});
  EXPECT_THAT(pass().parked_rows(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(script_.layers_begun, 1);
  for (const auto& row : rows) EXPECT_TRUE(std::isnan(row[0]));
  for (const auto& layer : pass().expert_rows()) {
    for (const int64_t count : layer) EXPECT_EQ(count, 0);
  }
  script_.missing.clear();
  parking_->restart(0);
  parking_->restart(1);
  const ModelRunner::Rows again = step(*parking_, {{0, {5, 9, 3}}, {1, {7, 7}}});
  const ModelRunner::Rows expected = step(*plain_, {{0, {5, 9, 3}}, {1, {7, 7}}});
  for (size_t row = 0; row < expected.size(); ++row) expect_same_bits(again[row], expected[row]);
}

INSTANTIATE_TEST_SUITE_P(Devices, ForwardPassParking,
                         ::testing::Values(kernels::DeviceKind::kCpu,
                                           kernels::DeviceKind::kCpuAsync),
                         [](const auto& info) {
                           return info.param == kernels::DeviceKind::kCpu ? "cpu" : "cpu_async";
                         });

}  // namespace
}  // namespace brigade::tests
