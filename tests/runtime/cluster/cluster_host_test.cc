// The coordinator's side of a cluster against workers in the same process: who is let in, what is
// loaded where, and that no bit changes when workers are lost, hung, slow or leave.
#include "gmock/gmock.h"
#include "tests/runtime/cluster/cluster_host_bed.h"

namespace brigade::runtime {
namespace {

using ::testing::HasSubstr;

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
  const auto loss = [&] { return host_->status().workers[1].last_loss; };
  EXPECT_TRUE(comes([&] { return loss().find("heartbeat missed") != std::string::npos; }))
      << loss();
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
