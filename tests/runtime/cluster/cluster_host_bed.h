// A coordinator's side of a cluster and workers in the same process, with a step thread that is the
// test's. One test's thread.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"
#include "runtime/cluster/cluster_host.h"
#include "tests/support/scripted_worker.h"

namespace brigade::runtime {

using namespace expert_parallel;
using tests::ScriptedWorker;
using tests::ScriptedWorkerOptions;

inline constexpr int kLayers = 2, kExperts = 5, kTopK = 2, kHidden = 64, kRows = 12;
inline constexpr ExpertGeometry kGeometry = {
    .moe_layers = kLayers, .experts = kExperts, .top_k = kTopK, .hidden = kHidden, .ffn = 32};

inline ServingIdentity identity() { return {"1.0", "f00d", 77, "probe 77, wire f32"}; }

// A coordinator with its step thread, which is the test's.
class ClusterHostTest : public ::testing::Test {
 protected:
  ClusterHostTest() : experts_(kGeometry, 1), hub_(make_loopback_hub()) {
    device_ = *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
    stream_ = *device_->create_stream();
    home_ = std::make_unique<tests::SeededHome>(*device_, experts_);
    all_ = *ExpertShard::create(*device_, kGeometry);
    auto upload = *kernels::StagedUpload::create(*device_);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int e = 0; e < kExperts; ++e) {
        CHECK(all_->load(*upload, layer, e, experts_.source(layer, e)).ok());
      }
    }
    reference_ = *make_local_exchange(*device_, *all_, kRows);
    settings_ = {.geometry = kGeometry,
                 .expected_workers = 2,
                 .max_ranks = 4,
                 .microbatches = 1,
                 .max_rows = kRows,
                 .identity = identity(),
                 .session = {.coordinator_id = 5, .secret = {1, 2, 3}},
                 .incarnation = 9,
                 .heartbeat = absl::Milliseconds(20),
                 .lost_after = absl::Seconds(30),
                 .reply_deadline = absl::Seconds(30),
                 .join_deadline = absl::Seconds(60)};
  }
  ~ClusterHostTest() override {
    exchange_.reset();
    workers_.clear();
    if (host_ != nullptr) host_->stop();
  }

  void start() {
    host_ = std::make_unique<ClusterHost>(settings_, make_loopback_transport(hub_), *home_);
    home_->connect(host_.get());
    exchange_ = *host_->make_exchange(*device_, home_->shard(), kRows);
    host_->start();
  }

  ScriptedWorker& join(ScriptedWorkerOptions options) {
    if (options.identity.build_version.empty()) options.identity = identity();
    workers_.push_back(std::make_unique<ScriptedWorker>(hub_, experts_, options));
    workers_.back()->join(*host_);
    // Ranks go by the order in which workers come.
    EXPECT_TRUE(comes([&] { return workers_.back()->rank() >= 0 || workers_.back()->ended(); }));
    return *workers_.back();
  }
  ScriptedWorker& join(const std::string& id, uint64_t incarnation = 1) {
    return join(ScriptedWorkerOptions{.id = id, .incarnation = incarnation});
  }

  // Waits for a state that must come; false after half a minute.
  template <typename Condition>
  bool comes(Condition&& condition) {
    for (const absl::Time end = absl::Now() + absl::Seconds(30); absl::Now() < end;) {
      if (condition()) return true;
      waker_.wait_until(absl::Now() + absl::Milliseconds(2));
    }
    return false;
  }
  bool all_held() {
    return comes([&] { return host_->not_ready_reason().empty(); });
  }
  bool holder_of_all_is(int rank) {
    return comes([&] {
      const ClusterStatus status = host_->status();
      for (const auto& layer : status.holders) {
        for (const int holder : layer) {
          if (holder != rank) return false;
        }
      }
      return status.holders.size() == kLayers;
    });
  }

  void begin_layer(int layer) {
    layer_ = layer;
    x_.resize(kRows * kHidden);
    chosen_.resize(kRows * kTopK);
    std::normal_distribution<float> normal;
    for (float& value : x_) value = normal(random_);
    for (int row = 0; row < kRows; ++row) {
      chosen_[row * kTopK] = static_cast<int32_t>(random_() % kExperts);
      chosen_[row * kTopK + 1] =
          static_cast<int32_t>((chosen_[row * kTopK] + 1 + random_() % (kExperts - 1)) % kExperts);
    }
    ASSERT_TRUE(exchange_->begin(*stream_, rows(), &waker_).ok());
  }
  LayerRows rows() const { return {layer_, x_.data(), chosen_.data(), kRows}; }

  // Ends the layer, parked rows in further rounds as the engine does; the answers must be the
  // reference's, bit by bit.
  void finish_layer() {
    ASSERT_TRUE(comes([&] {
      const auto polled = exchange_->poll();
      EXPECT_TRUE(polled.ok()) << polled.status();
      if (!polled.ok() || (*polled && exchange_->parked_rows().empty())) return true;
      if (*polled) {
        EXPECT_TRUE(exchange_->begin(*stream_, rows(), &waker_).ok());
      }
      return false;
    }));
    ASSERT_TRUE(exchange_->parked_rows().empty());
    ASSERT_TRUE(reference_->begin(*stream_, rows(), nullptr).ok());
    ASSERT_TRUE(*reference_->poll());
    EXPECT_EQ(std::memcmp(exchange_->answers(), reference_->answers(),
                          sizeof(float) * kRows * kTopK * kHidden),
              0);
  }
  void run_layer(int layer) {
    begin_layer(layer);
    if (!HasFatalFailure()) finish_layer();
  }

  tests::SeededExperts experts_;
  std::shared_ptr<LoopbackHub> hub_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<ExpertShard> all_;
  std::unique_ptr<Exchange> reference_;
  std::unique_ptr<tests::SeededHome> home_;
  ClusterSettings settings_;
  kernels::Waker waker_;
  std::unique_ptr<ClusterHost> host_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<std::unique_ptr<ScriptedWorker>> workers_;
  std::mt19937_64 random_{1};
  int layer_ = 0;
  std::vector<float> x_;
  std::vector<int32_t> chosen_;
};

}  // namespace brigade::runtime
