// A shard's slots: what is packed, counted and freed, and that slots nobody uses may change beside
// a running step thread.
#include "expert_parallel/experts/expert_shard.h"

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

constexpr ExpertGeometry kGeometry = {
    .moe_layers = 2, .experts = 6, .top_k = 2, .hidden = 24, .ffn = 20};

class ExpertShardTest : public ::testing::TestWithParam<kernels::DeviceKind> {
 protected:
  void SetUp() override {
    device_ = *kernels::Device::create(GetParam(), 1);
    stream_ = *device_->create_stream();
    upload_ = *kernels::StagedUpload::create(*device_, {.piece_bytes = 1 << 10});
    shard_ = *ExpertShard::create(*device_, kGeometry);
    matrix_.resize(kGeometry.hidden * kGeometry.ffn);
    for (size_t i = 0; i < matrix_.size(); ++i) matrix_[i] = 0.01f * static_cast<float>(i % 37);
  }
  ExpertSource source() const { return {matrix_.data(), matrix_.data(), matrix_.data()}; }

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::StagedUpload> upload_;
  std::unique_ptr<ExpertShard> shard_;
  std::vector<float> matrix_;
};

TEST_P(ExpertShardTest, PreparedOrLoadedIsTheSame) {
  const size_t before = device_->bytes_in_use();
  const bool planned = GetParam() != kernels::DeviceKind::kCpu;
  ASSERT_TRUE(shard_->plan(3).ok());
  EXPECT_EQ(shard_->planned_experts(), planned ? 3u : 0u);
  const size_t with_plan = device_->bytes_in_use();
  auto prepared = shard_->prepare(*upload_, 1, 4, source());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_TRUE(upload_->finish().ok());
  EXPECT_FALSE(shard_->holds(1, 4));
  EXPECT_EQ(shard_->resident_bytes(), 0u);
  const uint64_t checksum = prepared->checksum;
  ASSERT_TRUE(shard_->insert(*std::move(prepared)).ok());
  EXPECT_TRUE(shard_->holds(1, 4));
  EXPECT_EQ(*shard_->checksum(1, 4), checksum);
  EXPECT_EQ(shard_->resident_bytes(), shard_->expert_bytes());

  ASSERT_TRUE(shard_->load(*upload_, 0, 2, source()).ok());
  EXPECT_EQ(*shard_->checksum(0, 2), checksum) << "of the bytes, not of the place";
  EXPECT_EQ(shard_->resident_bytes(), 2 * shard_->expert_bytes());
  EXPECT_EQ(device_->bytes_in_use() - before, shard_->reserved_bytes());
  EXPECT_EQ(shard_->reserved_bytes(), (planned ? 3 : 2) * shard_->expert_bytes());

  EXPECT_TRUE(absl::IsAlreadyExists(shard_->load(*upload_, 0, 2, source())));
  auto again = shard_->prepare(*upload_, 0, 2, source());
  ASSERT_TRUE(again.ok() && upload_->finish().ok());
  EXPECT_TRUE(absl::IsAlreadyExists(shard_->insert(*std::move(again))));
  EXPECT_TRUE(absl::IsInvalidArgument(shard_->prepare(*upload_, 2, 0, source()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(shard_->load(*upload_, 0, 6, source())));

  EXPECT_TRUE(shard_->unload(1, 4).ok());
  EXPECT_TRUE(absl::IsNotFound(shard_->unload(1, 4)));
  EXPECT_TRUE(absl::IsNotFound(shard_->checksum(1, 4).status()));
  EXPECT_TRUE(shard_->unload(0, 2).ok());
  EXPECT_EQ(shard_->resident_bytes(), 0u);
  EXPECT_EQ(device_->bytes_in_use(), with_plan) << "unloading frees, but for the plan";
}

// The step thread runs expert 0 of layer 0 all the time; the others come and go.
TEST_P(ExpertShardTest, SlotsNobodyUsesChangeBesideARunningStep) {
  ASSERT_TRUE(shard_->load(*upload_, 0, 0, source()).ok());
  ASSERT_TRUE(shard_->load(*upload_, 0, 1, source()).ok());
  constexpr int kRows = 3;
  const std::vector<float> x(kRows * kGeometry.hidden, 0.5f);
  const std::vector<int32_t> experts = {0, 1, 1, 0, 0, 1};
  auto at = *kernels::Buffer::allocate(*device_, x.size() * sizeof(float));
  ASSERT_TRUE(stream_->copy_to_device(at.data(), x.data(), at.bytes()).ok());
  auto exchange = *make_local_exchange(*device_, *shard_, kRows);
  const size_t answers = experts.size() * kGeometry.hidden;
  std::vector<float> expected(answers), got(answers);
  const auto step = [&](std::vector<float>& to) {
    ASSERT_TRUE(
        exchange->begin(*stream_, {0, at.as<float>(), experts.data(), kRows}, nullptr).ok());
    ASSERT_TRUE(*exchange->poll());
    const size_t bytes = answers * sizeof(float);
    ASSERT_TRUE(stream_->copy_to_host(to.data(), exchange->answers(), bytes).ok());
    ASSERT_TRUE(stream_->synchronize(absl::Now() + absl::Seconds(30)).ok());
  };
  step(expected);

  std::atomic<bool> done{false};
  std::atomic<int> turns{0};
  std::thread loader([&] {
    auto upload = *kernels::StagedUpload::create(*device_, {.piece_bytes = 1 << 10});
    for (int round = 0; round < scaled(200, 20) || turns < 3; ++round) {
      const int layer = round % 2, expert = 2 + round % 4;
      auto prepared = shard_->prepare(*upload, layer, expert, source());
      ASSERT_TRUE(prepared.ok()) << prepared.status();
      ASSERT_TRUE(upload->finish().ok());
      ASSERT_TRUE(shard_->insert(*std::move(prepared)).ok());
      ASSERT_EQ(shard_->resident_bytes(), 3 * shard_->expert_bytes());
      ASSERT_TRUE(shard_->unload(layer, expert).ok());
    }
    done = true;
  });
  while (!done) {
    step(got);
    ASSERT_EQ(got, expected);
    EXPECT_GE(shard_->resident_bytes(), 2 * shard_->expert_bytes());
    ++turns;
  }
  loader.join();
}

INSTANTIATE_TEST_SUITE_P(Devices, ExpertShardTest,
                         ::testing::Values(kernels::DeviceKind::kCpu,
                                           kernels::DeviceKind::kCpuAsync));

}  // namespace
}  // namespace brigade::tests
