// The coordinator's side of a cluster against workers in the same process: who is let in, what is
// loaded where, and that no bit changes when workers are lost, hung, slow or leave.
#include "runtime/cluster/cluster_host.h"

#include <cstring>
#include <random>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"
#include "tests/support/scripted_worker.h"

namespace brigade::runtime {
namespace {

using namespace expert_parallel;
using ::testing::HasSubstr;
using tests::ScriptedWorker;
using tests::ScriptedWorkerOptions;

constexpr int kLayers = 2, kExperts = 5, kTopK = 2, kHidden = 64, kRows = 12;
constexpr ExpertGeometry kGeometry = {
    .moe_layers = kLayers, .experts = kExperts, .top_k = kTopK, .hidden = kHidden, .ffn = 32};

ServingIdentity identity() { return {"1.0", "f00d", 77, "probe 77, wire f32"}; }

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

TEST_F(ClusterHostTest, TwoWorkersShareTheExpertsAndGiveTheSameBits) {
  start();
  EXPECT_EQ(host_->not_ready_reason(), "waiting for workers: 0 of 2 joined");
  ScriptedWorker& a = join("a");
  EXPECT_TRUE(
      comes([&] { return host_->not_ready_reason() == "waiting for workers: 1 of 2 joined"; }));
  ScriptedWorker& b = join("b");
  ASSERT_TRUE(all_held());
  for (int round = 0; round < 6; ++round) run_layer(round % kLayers);
  const ClusterStatus status = host_->status();
  ASSERT_EQ(status.workers.size(), 2u);
  EXPECT_EQ(status.workers[0].worker_id, "a");
  EXPECT_EQ(status.workers[0].state, "active");
  EXPECT_EQ(status.workers[0].experts + status.workers[1].experts, kLayers * kExperts);
  EXPECT_GT(status.workers[0].rows_sent, 0u);
  EXPECT_EQ(status.exchanges, 6u);
  EXPECT_EQ(status.coordinator_expert_bytes, 0);
  EXPECT_EQ(a.resident_bytes() + b.resident_bytes(), all_->resident_bytes());
}

TEST_F(ClusterHostTest, RefusesWhatDoesNotFitWithBothValues) {
  start();
  const auto refusal = [&](ServingIdentity theirs) {
    ScriptedWorker& worker =
        join(ScriptedWorkerOptions{.id = "stranger", .identity = std::move(theirs)});
    EXPECT_TRUE(comes([&] { return worker.ended(); }));
    EXPECT_EQ(worker.end_status().code(), absl::StatusCode::kFailedPrecondition);
    return std::string(worker.end_status().message());
  };
  EXPECT_EQ(refusal({"1.1", "f00d", 77, ""}),
            "worker stranger has version 1.1, the coordinator has 1.0");
  EXPECT_EQ(refusal({"1.0", "beef", 77, ""}),
            "worker stranger has a model with fingerprint beef, the coordinator has f00d");
  EXPECT_EQ(refusal({"1.0", "f00d", 78, "probe 78, wire f32"}),
            "worker stranger has numerics 000000000000004e (probe 78, wire f32), the coordinator "
            "has 000000000000004d (probe 77, wire f32)");
  EXPECT_TRUE(comes([&] { return host_->status().workers_refused == 3; }));
  EXPECT_EQ(host_->status().workers_joined, 0);
}

TEST_F(ClusterHostTest, AWorkerKilledWithRowsOutstandingChangesNoBit) {
  start();
  ScriptedWorker& a = join("a");
  join("b");
  ASSERT_TRUE(all_held());
  run_layer(0);
  a.hold_answers();
  begin_layer(1);
  a.kill();
  finish_layer();
  EXPECT_TRUE(holder_of_all_is(1));
  EXPECT_TRUE(comes([&] { return host_->status().workers_lost == 1; }));
  const ClusterStatus status = host_->status();
  EXPECT_GT(status.replayed_rows, 0u);
  ASSERT_EQ(status.replayed_rows_by_layer.size(), size_t{kLayers});
  EXPECT_EQ(status.replayed_rows_by_layer[0], 0u);
  EXPECT_EQ(status.replayed_rows_by_layer[1], status.replayed_rows);
  // It comes back to its slot and takes its share.
  join("a", 2);
  EXPECT_TRUE(comes([&] { return host_->status().workers[0].experts == kLayers * 2; }));
  run_layer(0);
  run_layer(1);
}

TEST_F(ClusterHostTest, WhenAllAreKilledTheCoordinatorTakesOverAndGivesBack) {
  start();
  join("a");
  join("b");
  ASSERT_TRUE(all_held());
  for (auto& worker : workers_) worker->kill();
  EXPECT_TRUE(holder_of_all_is(kCoordinator));
  run_layer(0);
  run_layer(1);
  EXPECT_EQ(host_->status().coordinator_expert_bytes, static_cast<int64_t>(all_->resident_bytes()));
  join("b", 2);
  EXPECT_TRUE(holder_of_all_is(1));
  run_layer(0);
  EXPECT_TRUE(comes([&] { return host_->status().coordinator_expert_bytes == 0; }));
  run_layer(1);
}

TEST_F(ClusterHostTest, SilenceAndOverdueAnswersAreEvidence) {
  settings_.lost_after = absl::Milliseconds(400);
  settings_.reply_deadline = absl::Milliseconds(100);
  start();
  ScriptedWorker& a = join("a");
  join(ScriptedWorkerOptions{.id = "b"});
  ASSERT_TRUE(all_held());
  a.hold_answers();  // its heart beats on
  begin_layer(0);
  finish_layer();
  EXPECT_THAT(host_->status().workers[0].last_loss, HasSubstr("reply overdue"));
  EXPECT_EQ(a.end_status().code(), absl::StatusCode::kAborted);
  join(ScriptedWorkerOptions{.id = "silent", .beats = false});
  EXPECT_TRUE(comes([&] {
    const ClusterStatus status = host_->status();
    return status.workers.size() == 3 && !status.workers[2].last_loss.empty();
  }));
  EXPECT_THAT(host_->status().workers[2].last_loss, HasSubstr("heartbeat missed: silent for"));
  run_layer(1);
}

TEST_F(ClusterHostTest, ALeavingWorkerServesUntilItsExpertsLiveElsewhere) {
  start();
  ScriptedWorker& a = join("a");
  join("b");
  ASSERT_TRUE(all_held());
  a.ask_to_leave();
  for (int round = 0; round < 4; ++round) run_layer(round % kLayers);
  EXPECT_TRUE(comes([&] { return a.dismissed() && a.ended(); }));
  EXPECT_TRUE(a.end_status().ok()) << a.end_status();
  EXPECT_TRUE(holder_of_all_is(1));
  run_layer(0);
  EXPECT_EQ(host_->status().workers_lost, 0);
  EXPECT_EQ(host_->status().replayed_rows, 0u);
}

// Nothing is released, and nobody dismissed, while a layer is under way that began before.
TEST_F(ClusterHostTest, AReleaseWaitsForTheLayerUnderWay) {
  start();
  ScriptedWorker& a = join("a");
  ScriptedWorker& b = join("b");
  ASSERT_TRUE(all_held());
  b.hold_answers();
  begin_layer(0);
  a.ask_to_leave();
  // b cannot load while it is held: its loads come after. c takes a's experts and some of b's.
  ScriptedWorker& c = join("c");
  EXPECT_TRUE(comes([&] { return c.resident_bytes() > 0; }));
  b.let_answers_go();
  EXPECT_TRUE(comes([&] { return host_->status().workers[0].experts == 0; }));
  waker_.wait_until(absl::Now() + absl::Milliseconds(100));
  EXPECT_FALSE(a.dismissed());
  finish_layer();
  EXPECT_TRUE(comes([&] { return a.dismissed(); }));
  EXPECT_TRUE(
      comes([&] { return b.resident_bytes() + c.resident_bytes() == all_->resident_bytes(); }));
  run_layer(1);
}

TEST_F(ClusterHostTest, WithoutWorkersTheCoordinatorStartsAtTheJoinDeadline) {
  settings_.join_deadline = absl::Milliseconds(50);
  start();
  EXPECT_TRUE(holder_of_all_is(kCoordinator));
  run_layer(0);
}

// It stays, is given nothing more, and the status says why.
TEST_F(ClusterHostTest, AWorkerThatCannotLoadStaysWithoutExperts) {
  start();
  ScriptedWorker& a = join("a");
  ScriptedWorker& broken = join(ScriptedWorkerOptions{.id = "broken", .fails_to_load = true});
  EXPECT_TRUE(holder_of_all_is(a.rank()));
  EXPECT_TRUE(comes([&] { return !host_->status().workers[1].load_failure.empty(); }));
  const ClusterStatus status = host_->status();
  EXPECT_THAT(status.workers[1].load_failure,
              testing::ContainsRegex("could not load [0-9]+ experts: no memory"));
  EXPECT_EQ(status.workers[1].state, "active");
  EXPECT_EQ(status.workers[1].experts, 0);
  EXPECT_EQ(status.workers_lost, 0);
  EXPECT_EQ(status.not_ready_reason, "");
  run_layer(0);
  // A third one shares with a alone; then the first goes, and nobody asks the broken one again.
  join("c");
  EXPECT_TRUE(comes([&] { return host_->status().workers[2].experts == kLayers * 2; }));
  a.kill();
  EXPECT_TRUE(holder_of_all_is(2));
  run_layer(1);
  EXPECT_FALSE(broken.ended());
  EXPECT_EQ(host_->status().workers[1].load_failure, status.workers[1].load_failure);
}

// The limit comes with the registration. What fits nowhere the coordinator holds.
TEST_F(ClusterHostTest, NobodyIsGivenMoreThanItsMemoryTakes) {
  start();
  join(ScriptedWorkerOptions{.id = "small", .max_experts = 3});
  ScriptedWorker& middle = join(ScriptedWorkerOptions{.id = "middle", .max_experts = 5});
  ASSERT_TRUE(all_held());
  const auto experts_are = [this](std::vector<int64_t> each) {
    return comes([&] {
      std::vector<int64_t> now;
      for (const WorkerStatus& worker : host_->status().workers) now.push_back(worker.experts);
      return now == each;
    });
  };
  EXPECT_TRUE(experts_are({3, 5}));
  EXPECT_GT(host_->status().coordinator_expert_bytes, 0);
  EXPECT_EQ(host_->status().workers[0].max_experts, 3);
  run_layer(0);
  run_layer(1);
  join("large");
  EXPECT_TRUE(experts_are({3, 4, 3}) || experts_are({3, 3, 4}));
  EXPECT_TRUE(comes([&] { return host_->status().coordinator_expert_bytes == 0; }));
  run_layer(0);
  middle.kill();
  EXPECT_TRUE(experts_are({3, 0, 7}));
  run_layer(1);
  EXPECT_EQ(host_->status().workers_lost, 1);
}

TEST_F(ClusterHostTest, AWorkerThatHoldsOtherBytesIsNotUsed) {
  start();
  ScriptedWorker& a = join("a");
  join("b");
  ASSERT_TRUE(all_held());
  workers_[1]->kill();
  EXPECT_TRUE(holder_of_all_is(a.rank()));
  ScriptedWorker& other = join(ScriptedWorkerOptions{.id = "other", .wrong_checksums = true});
  EXPECT_TRUE(comes([&] { return other.ended(); }));
  EXPECT_THAT(std::string(other.end_status().message()), HasSubstr("wrong data: expert"));
  EXPECT_TRUE(holder_of_all_is(a.rank()));
  run_layer(0);
}

TEST_F(ClusterHostTest, ANameBelongsToOneLiveProcess) {
  start();
  join("a");
  ScriptedWorker& b = join(ScriptedWorkerOptions{.id = "b", .process = 1});
  ASSERT_TRUE(all_held());
  const auto refused = [&](ScriptedWorker& rival) {
    EXPECT_EQ(rival.end_status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(rival.end_status().message()),
                testing::MatchesRegex("worker b on here: another process has that name, on here as "
                                      "rank 1 since [-0-9]+ [:0-9]+ UTC, and is alive; give every "
                                      "worker a name of its own"));
  };
  refused(join(ScriptedWorkerOptions{.id = "b", .incarnation = 2, .process = 2}));
  EXPECT_FALSE(b.ended());
  EXPECT_EQ(host_->status().workers_lost, 0);
  run_layer(0);
  // The same process, before the end of its stream was noticed: at once.
  ScriptedWorker& again = join(ScriptedWorkerOptions{.id = "b", .incarnation = 3, .process = 1});
  EXPECT_EQ(again.rank(), 1);
  EXPECT_TRUE(comes([&] { return b.ended(); }));
  ASSERT_TRUE(all_held());
  // Its process is gone: another one takes the name at once.
  again.kill();
  EXPECT_EQ(join(ScriptedWorkerOptions{.id = "b", .incarnation = 4, .process = 3}).rank(), 1);
  ASSERT_TRUE(all_held());
  run_layer(1);
  EXPECT_EQ(host_->status().workers_refused, 1);
}

TEST_F(ClusterHostTest, WhoClaimsASilentWorkersNameWaitsForItsLoss) {
  settings_.lost_after = absl::Milliseconds(600);
  start();
  join("a");
  join(ScriptedWorkerOptions{.id = "b", .beats = false, .process = 1});
  ASSERT_TRUE(all_held());
  ScriptedWorker& rival =
      join(ScriptedWorkerOptions{.id = "b", .incarnation = 2, .process = 2});  // waits for its rank
  EXPECT_EQ(rival.rank(), 1);
  EXPECT_THAT(host_->status().workers[1].last_loss, HasSubstr("heartbeat missed"));
  ASSERT_TRUE(all_held());
  run_layer(0);
}

TEST_F(ClusterHostTest, StoppingDismissesAllWorkers) {
  start();
  join("a");
  join("b");
  ASSERT_TRUE(all_held());
  host_->dismiss_workers("the coordinator is stopping", absl::Now() + absl::Seconds(30));
  for (auto& worker : workers_) {
    EXPECT_TRUE(worker->ended());
    EXPECT_TRUE(comes([&] { return worker->dismissed(); }));
  }
  EXPECT_EQ(host_->status().workers_lost, 0);
}

}  // namespace
}  // namespace brigade::runtime
