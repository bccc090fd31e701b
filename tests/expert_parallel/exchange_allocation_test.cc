// Once it runs, an exchange allocates nothing: neither the step thread, nor the progress threads,
// nor the workers. What UCX takes for itself comes from malloc and is not counted.
#include <random>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/expert_parallel/transport_kinds.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/expert_cluster.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using namespace expert_parallel;

constexpr int kExperts = 6, kTopK = 2, kHidden = 512, kWorkers = 2, kMicrobatches = 2;
constexpr int kMaxRows = 500;  // several frames to each worker

class ExchangeAllocation : public ::testing::TestWithParam<TransportKind> {
 protected:
  ExchangeAllocation() {
    const TransportFactory factory = GetParam().make_factory();
    cluster_ = std::make_unique<ExpertCluster>(ExpertClusterOptions{
        .geometry =
            {.moe_layers = 1, .experts = kExperts, .top_k = kTopK, .hidden = kHidden, .ffn = 16},
        .workers = kWorkers,
        .microbatches = kMicrobatches,
        .max_rows = kMaxRows,
        .coordinator_holds_all = true,
        .make_transport = [factory](Rank) { return factory({}); }});
    // A third each: two workers and the coordinator.
    std::vector<std::vector<Rank>> layer;
    for (int e = 0; e < kExperts; ++e) layer.push_back({e % 3 == 2 ? kCoordinator : e % 3});
    const Placement placement = *Placement::create(1, {layer}, kWorkers);
    for (Rank rank = 0; rank < kWorkers; ++rank) cluster_->start_worker(rank, placement);
    for (int i = 0; i < kMicrobatches; ++i)
      EXPECT_TRUE(cluster_->exchange(i).set_view(cluster_->view(placement)).ok());
    std::mt19937_64 random(1);
    std::vector<float> x(size_t(kMaxRows) * kHidden);
    for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
    for (int i = 0; i < kMaxRows * kTopK; ++i)
      experts_.push_back(static_cast<int32_t>((i % kTopK + random() % (kExperts / kTopK) * kTopK)));
    for (int i = 0; i < kMicrobatches; ++i) x_.push_back(cluster_->upload(i, x));
  }

  // Both microbatches at once, until both are answered. Nothing in here may allocate.
  bool exchange(int rows) {
    for (int i = 0; i < kMicrobatches; ++i) {
      if (!cluster_->exchange(i)
               .begin(cluster_->stream(), {0, x_[i], experts_.data(), rows}, &waker_)
               .ok())
        return false;
    }
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    for (int i = 0; i < kMicrobatches;) {
      const absl::StatusOr<bool> done = cluster_->exchange(i).poll();
      if (!done.ok()) return false;
      if (*done) {
        ++i;
      } else if (!waker_.wait_until(deadline)) {
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<ExpertCluster> cluster_;
  std::vector<int32_t> experts_;
  std::vector<const float*> x_;
  kernels::Waker waker_;
};
INSTANTIATE_TEST_SUITE_P(Transports, ExchangeAllocation, ::testing::ValuesIn(transport_kinds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(ExchangeAllocation, NoneInSteadyState) {
  if (!counts_allocations()) GTEST_SKIP() << "operator new belongs to the sanitizer";
  const int sizes[] = {1, 7, 64, kMaxRows};
  for (int round = 0; round < 20; ++round) ASSERT_TRUE(exchange(sizes[round % std::size(sizes)]));
  const int rounds = scaled(400, 100);
  const uint64_t before = allocations().count;
  for (int round = 0; round < rounds; ++round)
    ASSERT_TRUE(exchange(sizes[round % std::size(sizes)]));
  EXPECT_EQ(allocations().count - before, 0u) << "in " << rounds << " rounds";
  EXPECT_GT(cluster_->exchange(0).counters().with_several_frames.load(), 0u);
}

}  // namespace
}  // namespace brigade::tests
