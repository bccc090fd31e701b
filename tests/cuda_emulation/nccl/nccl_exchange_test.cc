// The exchange over emulated GPUs and NCCL's stand-in: rows never leave device memory, bits are the
// CPU's, and a worker that is killed in any phase costs its pair and nothing else.
#include <algorithm>
#include <random>

#include "absl/time/clock.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "kernels/ops/dense.h"
#include "tests/cuda_emulation/nccl/nccl_bed.h"
#include "tests/cuda_emulation/nccl/nccl_control.h"
#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/stream_gate.h"
#include "tests/support/expert_cluster.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;
using kernels::DType;

constexpr int kExperts = 6, kTopK = 2, kMaxRows = 24, kWorkers = 3;

ExpertGeometry geometry(DType wire) {
  return {.moe_layers = 2,
          .experts = kExperts,
          .top_k = kTopK,
          .hidden = 64,
          .ffn = 32,
          .wire_dtype = wire};
}

struct Rows {
  std::vector<float> x;
  std::vector<int32_t> experts;
  int rows = 0;
};

Rows random_rows(int rows, std::mt19937_64& random) {
  Rows made = {.rows = rows};
  std::normal_distribution<float> normal;
  for (int i = 0; i < rows * 64; ++i) made.x.push_back(normal(random));
  for (int row = 0; row < rows; ++row) {
    const auto first = static_cast<int32_t>(random() % kExperts);
    made.experts.push_back(first);
    made.experts.push_back(
        static_cast<int32_t>((first + 1 + random() % (kExperts - 1)) % kExperts));
  }
  return made;
}

// Every expert on two ranks of three.
Placement placement(uint64_t version) {
  std::vector<std::vector<std::vector<Rank>>> replicas(2);
  for (auto& layer : replicas) {
    for (int expert = 0; expert < kExperts; ++expert)
      layer.push_back({expert % kWorkers, (expert + 1) % kWorkers});
  }
  return *Placement::create(version, replicas, kWorkers);
}

class NcclExchange : public ::testing::Test {
 protected:
  void SetUp() override { violations_ = cuda_emulation::nccl_violations(); }
  void TearDown() override {
    EXPECT_EQ(cuda_emulation::nccl_violations(), violations_)
        << cuda_emulation::last_nccl_violation();
  }

  std::unique_ptr<ExpertCluster> make_cluster(DType wire) {
    auto hub = make_loopback_hub();
    ExpertClusterOptions options = {.geometry = geometry(wire),
                                    .workers = kWorkers,
                                    .microbatches = 2,
                                    .max_rows = kMaxRows,
                                    .seed = seed_,
                                    .coordinator_holds_all = false};
    options.make_device = [](Rank rank) { return make_emulated_device(rank + 1); };
    options.make_device_transport = [hub](Rank rank, kernels::Device& device) {
      TransportOptions heads;
      heads.max_message_bytes += kNcclTrailerBytes;
      return make_nccl_transport(make_loopback_transport(hub, heads), device,
                                 {.makes_ids = rank == kCoordinator});
    };
    return std::make_unique<ExpertCluster>(options);
  }
  void start(ExpertCluster& cluster) {
    for (int rank = 0; rank < kWorkers; ++rank) cluster.start_worker(rank, placement(1));
    show_view(cluster);
  }
  void show_view(ExpertCluster& cluster) {
    const auto view = cluster.view(placement(++version_));
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(cluster.exchange(i).set_view(view).ok());
  }
  void begin(ExpertCluster& cluster, int microbatch, const Rows& rows) {
    const float* x = cluster.upload(microbatch, rows.x);
    const absl::Status begun =
        cluster.exchange(microbatch)
            .begin(cluster.stream(), {layer_, x, rows.experts.data(), rows.rows}, &waker_);
    ASSERT_TRUE(begun.ok()) << begun;
  }
  // Until it is done; losses that the links report are declared, as the membership does.
  void finish(ExpertCluster& cluster, int microbatch) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (true) {
      const absl::StatusOr<bool> done = cluster.exchange(microbatch).poll();
      ASSERT_TRUE(done.ok()) << done.status();
      if (*done) return;
      for (const Rank rank : cluster.take_evidence()) {
        cluster.declare_lost(rank);
        show_view(cluster);
      }
      ASSERT_LT(absl::Now(), deadline) << "an answer is owed";
      cluster.links().sleep_until(waker_, absl::Now() + absl::Milliseconds(5));
    }
  }
  void compare(ExpertCluster& cluster, int microbatch, const Rows& rows) {
    EXPECT_TRUE(cluster.exchange(microbatch).parked_rows().empty());
    ASSERT_TRUE(cluster.answers_of(cluster.exchange(microbatch), rows.rows) ==
                cluster.reference(layer_, rows.x, rows.experts));
  }

  const uint64_t seed_ = test_seed();
  std::mt19937_64 random_{seed_};
  kernels::Waker waker_;  // outlives the exchanges
  uint64_t version_ = 1, violations_ = 0;
  int layer_ = 0;
};

TEST_F(NcclExchange, GivesTheBitsOfTheCpu) {
  SCOPED_TRACE(replay_note("nccl_exchange_test", seed_));
  const uint64_t transfers = cuda_emulation::nccl_transfers();
  for (const DType wire : {DType::kF32, DType::kBF16}) {
    auto cluster = make_cluster(wire);
    start(*cluster);
    for (int round = 0; round < scaled(6, 3); ++round) {
      layer_ = round % 2;
      Rows rows[2];
      for (int i = 0; i < 2; ++i) {
        rows[i] = random_rows(1 + random_() % kMaxRows, random_);
        begin(*cluster, i, rows[i]);
      }
      for (int i = 0; i < 2; ++i) {
        finish(*cluster, i);
        if (HasFatalFailure()) return;
        compare(*cluster, i, rows[i]);
      }
    }
    EXPECT_EQ(cluster->links().refusals().total(), 0u);
  }
  EXPECT_GT(cuda_emulation::nccl_transfers(), transfers);
}

// Before, while and after its frames are under way; the new life joins over a fresh pair.
TEST_F(NcclExchange, AWorkerKilledInAnyPhaseChangesNoBit) {
  SCOPED_TRACE(replay_note("nccl_exchange_test", seed_));
  auto cluster = make_cluster(DType::kF32);
  start(*cluster);
  uint64_t replayed = 0;
  for (int round = 0; round < scaled(20, 8); ++round) {
    const Rank victim = static_cast<Rank>(random_() % kWorkers);
    Rows rows[2];
    for (int i = 0; i < 2; ++i) rows[i] = random_rows(kMaxRows, random_);
    begin(*cluster, 0, rows[0]);
    if (HasFatalFailure()) return;
    absl::SleepFor(absl::Microseconds(random_() % 4000));
    cluster->kill_worker(victim);
    begin(*cluster, 1, rows[1]);
    for (int i = 0; i < 2; ++i) {
      finish(*cluster, i);
      if (HasFatalFailure()) return;
      compare(*cluster, i, rows[i]);
    }
    cluster->declare_lost(victim);
    cluster->start_worker(victim, placement(version_));
    show_view(*cluster);
    replayed = cluster->exchange(0).counters().replayed_rows +
               cluster->exchange(1).counters().replayed_rows;
  }
  EXPECT_GT(replayed, 0u);
  EXPECT_EQ(cluster->links().refusals().total(), 0u);
}

// Frames through host memory: after an error of the GPU the point behind the copy of the rows is
// passed too, but what lies there are no rows.
TEST(StagedExchange, SendsNoRowsOfAGpuThatHasFailed) {
  auto hub = make_loopback_hub();
  ExpertClusterOptions options = {.geometry = geometry(DType::kF32),
                                  .workers = kWorkers,
                                  .max_rows = kMaxRows,
                                  .coordinator_holds_all = false};
  options.make_device = [](Rank rank) {
    return rank == kCoordinator ? make_emulated_device(0)
                                : *kernels::Device::create(kernels::DeviceKind::kCpu, 1);
  };
  options.make_transport = [hub](Rank) { return make_loopback_transport(hub); };
  kernels::Waker waker;
  ExpertCluster cluster(options);
  for (int rank = 0; rank < kWorkers; ++rank) cluster.start_worker(rank, placement(1));
  ASSERT_TRUE(cluster.exchange(0).set_view(cluster.view(placement(2))).ok());
  std::mt19937_64 random(1);
  const Rows rows = random_rows(kMaxRows, random);
  const float* x = cluster.upload(0, rows.x);
  cuda_emulation::StreamGate gate;
  gate.close(cluster.stream());
  cuda_emulation::inject_fault(cudaErrorIllegalAddress);
  // The kernel that fails; it touches nothing.
  ASSERT_TRUE(kernels::gather_rows(cluster.stream(), {.x = x,
                                                      .index = reinterpret_cast<const int32_t*>(x),
                                                      .out = const_cast<float*>(x) + 1,
                                                      .rows = 1,
                                                      .width = 1})
                  .ok());
  ASSERT_TRUE(cluster.exchange(0)
                  .begin(cluster.stream(), {0, x, rows.experts.data(), rows.rows}, &waker)
                  .ok());
  gate.open();
  absl::StatusOr<bool> done = false;
  for (const absl::Time until = absl::Now() + absl::Seconds(20);
       done.ok() && !*done && absl::Now() < until; done = cluster.exchange(0).poll()) {
    waker.wait_until(absl::Now() + absl::Milliseconds(5));
  }
  EXPECT_TRUE(absl::IsInternal(done.status())) << done.status();
  for (int rank = 0; rank < kWorkers; ++rank) EXPECT_EQ(cluster.links().frames_sent(rank), 0u);
  cuda_emulation::reset_faults();
}

}  // namespace
}  // namespace brigade::tests
