// One exchange of several frames each way between a coordinator and three workers, of which rank 1
// is the victim: its traffic can be cut after so many frames. Test thread, but for what is atomic.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/support/device_frames.h"
#include "tests/support/expert_cluster.h"
#include "tests/support/fault_transport.h"
#include "tests/support/test_env.h"

namespace brigade::tests {

inline constexpr int kRows = 200, kTopK = 3, kHidden = 2048;  // several frames each way
inline constexpr int kExperts = 9;

inline expert_parallel::ExpertGeometry geometry() {
  return {.moe_layers = 1, .experts = kExperts, .top_k = kTopK, .hidden = kHidden, .ffn = 16};
}

struct Rows {
  std::vector<float> x;
  std::vector<int32_t> experts;
};

inline Rows random_rows(std::mt19937_64& random) {
  Rows rows;
  std::normal_distribution<float> normal;
  for (int i = 0; i < kRows * kHidden; ++i) rows.x.push_back(normal(random));
  std::vector<int32_t> ids(kExperts);
  for (int i = 0; i < kExperts; ++i) ids[i] = i;
  for (int row = 0; row < kRows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    rows.experts.insert(rows.experts.end(), ids.begin(), ids.begin() + kTopK);
  }
  return rows;
}

// Stops the traffic of one link for good after so many frames, and says so.
struct Cut {
  std::atomic<int> pass{1 << 30};
  std::atomic<bool> reached{false};
  Fault decide() {
    if (pass.fetch_sub(1) > 0) return {};
    reached = true;
    return {.drop = true};
  }
};

// With and without rows of frames in device memory.
class ExchangeLoss : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override { random_.seed(seed_); }

  std::unique_ptr<ExpertCluster> make_cluster(
      bool coordinator_holds_all,
      expert_parallel::HomelessRows homeless = expert_parallel::HomelessRows::kPark) {
    auto hub = expert_parallel::make_loopback_hub();
    ExpertClusterOptions options = {.geometry = geometry(),
                                    .workers = 3,
                                    .max_rows = kRows,
                                    .seed = seed_,
                                    .coordinator_holds_all = coordinator_holds_all,
                                    .homeless_rows = homeless};
    options.make_transport = [this, hub](expert_parallel::Rank rank) {
      auto transport = std::make_unique<FaultTransport>(
          expert_parallel::make_loopback_transport(hub, {.window = 4}), random_());
      // Rank 1 is the victim: its questions are cut at its own end, its answers at the
      // coordinator's.
      if (rank == 1)
        transport->decide = [this](expert_parallel::PeerId, std::span<const std::byte>) {
          return questions_.decide();
        };
      if (rank == expert_parallel::kCoordinator) {
        transport->decide = [this](expert_parallel::PeerId peer, std::span<const std::byte>) {
          return peer == victim_link_ ? answers_.decide() : Fault{};
        };
      }
      return transport;
    };
    return std::make_unique<ExpertCluster>(on_device(options));
  }
  ExpertClusterOptions on_device(ExpertClusterOptions options) {
    if (!GetParam()) return options;
    options.make_device = [](expert_parallel::Rank) {
      return *kernels::Device::create(kernels::DeviceKind::kCpuAsync, 1);
    };
    options.make_device_transport = [host = options.make_transport](expert_parallel::Rank rank,
                                                                    kernels::Device& device) {
      return std::make_unique<DeviceFrames>(host(rank), device);
    };
    return options;
  }
  void start_all(ExpertCluster& cluster, const expert_parallel::Placement& placement) {
    for (int rank = 0; rank < 3; ++rank) cluster.start_worker(rank, placement);
    victim_link_ = 2;  // links are numbered from 1 in the order of joining
    ASSERT_TRUE(cluster.exchange(0).set_view(cluster.view(placement)).ok());
  }
  void begin(ExpertCluster& cluster, const Rows& rows) {
    const float* x = cluster.upload(0, rows.x);
    const absl::Status begun =
        cluster.exchange(0).begin(cluster.stream(), {0, x, rows.experts.data(), kRows}, &waker_);
    ASSERT_TRUE(begun.ok()) << begun;
  }
  // Polls until it is done; `when_waiting` runs before each sleep.
  bool finish(ExpertCluster& cluster, const std::function<void()>& when_waiting = nullptr,
              absl::Duration at_most = absl::Seconds(60)) {
    const absl::Time deadline = absl::Now() + at_most;
    while (absl::Now() < deadline) {
      const absl::StatusOr<bool> done = cluster.exchange(0).poll();
      EXPECT_TRUE(done.ok()) << done.status();
      if (!done.ok() || *done) return done.ok();
      if (when_waiting) when_waiting();
      waker_.wait_until(std::min(deadline, absl::Now() + absl::Milliseconds(5)));
    }
    return false;
  }
  void expect_same_bits(ExpertCluster& cluster, const Rows& rows) {
    EXPECT_TRUE(cluster.answers_of(cluster.exchange(0), kRows) ==
                cluster.reference(0, rows.x, rows.experts));
  }

  const uint64_t seed_ = test_seed();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, replay_note("exchange_loss_test", seed_)};
  std::mt19937_64 random_;
  Cut questions_, answers_;
  std::atomic<expert_parallel::PeerId> victim_link_{0};
  kernels::Waker waker_;
};

}  // namespace brigade::tests
