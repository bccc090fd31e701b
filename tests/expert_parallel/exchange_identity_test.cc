// Answers are the same bits whatever computes them: any number of workers, any placement, frames
// late, doubled or out of order, with replicas, in both wire dtypes.
#include <algorithm>
#include <random>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "tests/expert_parallel/transport_kinds.h"
#include "tests/support/device_frames.h"
#include "tests/support/expert_cluster.h"
#include "tests/support/fault_transport.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;
using kernels::DType;

struct Layer {
  int layer = 0;
  std::vector<float> x;
  std::vector<int32_t> experts;
  int rows = 0;
};

Layer random_layer(const ExpertGeometry& geometry, int rows, std::mt19937_64& random) {
  Layer layer = {.layer = static_cast<int>(random() % geometry.moe_layers), .rows = rows};
  std::normal_distribution<float> normal;
  for (int i = 0; i < rows * geometry.hidden; ++i) layer.x.push_back(normal(random));
  std::vector<int32_t> ids(geometry.experts);
  for (int i = 0; i < geometry.experts; ++i) ids[i] = i;
  for (int row = 0; row < rows; ++row) {
    std::shuffle(ids.begin(), ids.end(), random);
    layer.experts.insert(layer.experts.end(), ids.begin(), ids.begin() + geometry.top_k);
  }
  return layer;
}

// Uneven: each expert on one to three ranks, some on the coordinator, some ranks with nothing.
Placement random_placement(const ExpertGeometry& geometry, int workers, uint64_t version,
                           std::mt19937_64& random) {
  std::vector<std::vector<std::vector<Rank>>> replicas(geometry.moe_layers);
  for (auto& layer : replicas) {
    layer.resize(geometry.experts);
    for (auto& ranks : layer) {
      for (uint64_t n = 1 + random() % 3; n > 0; --n) {
        // Towards the low ranks, so that loads differ.
        const Rank rank =
            static_cast<Rank>(std::min(random() % (workers + 1), random() % (workers + 1))) - 1;
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      }
    }
  }
  return *Placement::create(version, replicas, workers);
}

// `drives`: this thread, the step thread, drives the transport while it waits.
void finish(ExpertCluster& cluster, ClusterExchange& exchange, kernels::Waker& waker, bool drives) {
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (true) {
    const absl::StatusOr<bool> done = exchange.poll();
    ASSERT_TRUE(done.ok()) << done.status();
    if (*done) return;
    ASSERT_TRUE(drives ? cluster.links().sleep_until(waker, deadline) : waker.wait_until(deadline))
        << "rank " << exchange.waiting_for()[0] << " owes an answer";
  }
}

struct Totals {
  uint64_t several_frames = 0, several_experts = 0, without_rows = 0;
  int driven = 0;
};

void compare_over(const ExpertClusterOptions& options, int rounds, int most_rows,
                  std::mt19937_64& random, Totals* totals) {
  kernels::Waker waker;  // outlives the exchanges
  ExpertCluster cluster(options);
  Placement placement = random_placement(options.geometry, options.workers, 1, random);
  for (int rank = 0; rank < options.workers; ++rank) cluster.start_worker(rank, placement);
  const auto view = cluster.view(placement);
  const bool drives = random() % 2 == 0;
  totals->driven += drives;
  for (int i = 0; i < options.microbatches; ++i)
    ASSERT_TRUE(cluster.exchange(i).set_view(view).ok());
  for (int round = 0; round < rounds; ++round) {
    std::vector<Layer> layers;
    for (int i = 0; i < options.microbatches; ++i) {
      layers.push_back(
          random_layer(options.geometry, static_cast<int>(random() % (most_rows + 1)), random));
      const float* x = cluster.upload(i, layers[i].x);
      const absl::Status begun = cluster.exchange(i).begin(
          cluster.stream(), {layers[i].layer, x, layers[i].experts.data(), layers[i].rows}, &waker);
      ASSERT_TRUE(begun.ok()) << begun;
    }
    // A step thread that computes for longer than the progress thread waits for it.
    if (random() % 4 == 0) absl::SleepFor(absl::Milliseconds(3));
    for (int i = 0; i < options.microbatches; ++i) {
      finish(cluster, cluster.exchange(i), waker, drives);
      if (::testing::Test::HasFatalFailure()) return;
      const auto expected = cluster.reference(layers[i].layer, layers[i].x, layers[i].experts);
      ASSERT_TRUE(cluster.answers_of(cluster.exchange(i), layers[i].rows) == expected)
          << options.workers << " workers, round " << round << ", microbatch " << i;
      EXPECT_TRUE(cluster.exchange(i).parked_rows().empty());
    }
  }
  for (int i = 0; i < options.microbatches; ++i) {
    const ExchangeCounters& counters = cluster.exchange(i).counters();
    totals->several_frames += counters.with_several_frames;
    totals->several_experts += counters.rows_with_several_experts;
    totals->without_rows += counters.workers_without_rows;
  }
  EXPECT_EQ(cluster.links().refusals().total(), 0u);
}

ExpertGeometry small_geometry(DType wire) {
  return {.moe_layers = 2, .experts = 11, .top_k = 3, .hidden = 48, .ffn = 20, .wire_dtype = wire};
}

TEST(ExchangeIdentity, AnyWorkersPlacementAndWeather) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("exchange_identity_test", seed));
  std::mt19937_64 random(seed);
  Totals totals;
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    for (const int workers : {0, 1, 2, 3, 5, 7}) {
      auto hub = make_loopback_hub();
      ExpertClusterOptions options = {.geometry = small_geometry(wire),
                                      .workers = workers,
                                      .microbatches = 2,
                                      .max_rows = 40,
                                      .seed = random()};
      options.make_transport = [hub, &random](Rank) {
        return std::make_unique<FaultTransport>(
            make_loopback_transport(hub, {.window = 3}), random(),
            FaultRates{.twice = 0.1, .delay = 0.3, .longest_delay = absl::Milliseconds(2)});
      };
      compare_over(options, scaled(6, 3), 40, random, &totals);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(totals.driven, 0);
  EXPECT_LT(totals.driven, 12);
  EXPECT_GT(totals.several_experts, 0u);
  EXPECT_GT(totals.without_rows, 0u);
}

// Wide rows and many of them: several frames each way, more than a rank has buffers.
TEST(ExchangeIdentity, ManyFrames) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("exchange_identity_test", seed));
  std::mt19937_64 random(seed);
  Totals totals;
  auto hub = make_loopback_hub();
  ExpertClusterOptions options = {
      .geometry = {.moe_layers = 1, .experts = 6, .top_k = 4, .hidden = 1024, .ffn = 16},
      .workers = 3,
      .max_rows = 700,
      .frames_per_rank = 2,
      .seed = random()};
  options.make_transport = [hub, &random](Rank) {
    return std::make_unique<FaultTransport>(make_loopback_transport(hub, {.window = 2}), random(),
                                            FaultRates{.twice = 0.05, .delay = 0.3});
  };
  compare_over(options, 2, 700, random, &totals);
  EXPECT_GT(totals.several_frames, 0u);
}

// Device memory that the host cannot touch at the coordinator.
TEST(ExchangeIdentity, CoordinatorOnTheAsyncDevice) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("exchange_identity_test", seed));
  std::mt19937_64 random(seed);
  Totals totals;
  auto hub = make_loopback_hub();
  ExpertClusterOptions options = {.geometry = small_geometry(DType::kBF16),
                                  .workers = 2,
                                  .microbatches = 2,
                                  .max_rows = 20,
                                  .seed = random(),
                                  .coordinator_device = kernels::DeviceKind::kCpuAsync};
  options.make_transport = [hub](Rank) { return make_loopback_transport(hub); };
  compare_over(options, scaled(10, 4), 20, random, &totals);
}

// Rows of frames in device memory at both ends, which no host code touches.
TEST(ExchangeIdentity, DeviceFrames) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("exchange_identity_test", seed));
  std::mt19937_64 random(seed);
  Totals totals;
  for (const auto kind : {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCpuAsync}) {
    for (const bool wide : {false, true}) {
      auto hub = make_loopback_hub();
      ExpertClusterOptions options = {.geometry = small_geometry(DType::kBF16),
                                      .workers = 3,
                                      .microbatches = 2,
                                      .max_rows = wide ? 300 : 20,
                                      .frames_per_rank = 2,
                                      .seed = random()};
      if (wide) options.geometry.hidden = 1024;  // several frames each way
      options.make_device = [kind](Rank) { return *kernels::Device::create(kind, 1); };
      options.make_device_transport = [hub, &random](Rank, kernels::Device& device) {
        return std::make_unique<DeviceFrames>(
            std::make_unique<FaultTransport>(make_loopback_transport(hub, {.window = 3}), random(),
                                             FaultRates{.twice = 0.1, .delay = 0.3}),
            device);
      };
      compare_over(options, wide ? 2 : scaled(6, 3), options.max_rows, random, &totals);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(totals.several_frames, 0u);
}

// The transports between processes, here between threads.
TEST(ExchangeIdentity, OverEveryTransport) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("exchange_identity_test", seed));
  for (const TransportKind& kind : transport_kinds()) {
    SCOPED_TRACE(kind.name);
    std::mt19937_64 random(seed);
    Totals totals;
    const TransportFactory factory = kind.make_factory();
    ExpertClusterOptions options = {.geometry = small_geometry(DType::kF32),
                                    .workers = 2,
                                    .microbatches = 2,
                                    .max_rows = 40,
                                    .seed = random()};
    options.make_transport = [factory](Rank) { return factory({}); };
    compare_over(options, scaled(6, 2), 40, random, &totals);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace brigade::tests
