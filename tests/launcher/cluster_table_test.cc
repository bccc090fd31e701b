#include "launcher/cli/cluster_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/cli/drafting_table.h"

namespace brigade::launcher {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ClusterTable, ShowsWorkersRowsAndWhereExpertsLive) {
  v1::Cluster cluster;
  cluster.set_expected_workers(2);
  cluster.set_started(true);
  cluster.set_placement_version(7);
  cluster.set_workers_joined(3);
  cluster.set_workers_lost(1);
  for (int rank = 0; rank < 2; ++rank) {
    v1::Worker* worker = cluster.add_workers();
    worker->set_rank(rank);
    worker->set_worker_id(rank == 0 ? "left" : "right");
    worker->set_state(rank == 0 ? "active" : "lost");
    worker->set_experts(rank == 0 ? 9 : 0);
    worker->set_rows_sent(rank == 0 ? 30 : 10);
  }
  cluster.mutable_workers(0)->set_expert_bytes(9'000'000);
  cluster.mutable_workers(0)->set_reserved_expert_bytes(12'000'000);
  cluster.mutable_workers(1)->set_last_loss("heartbeat missed");
  for (int layer = 0; layer < 3; ++layer) {
    v1::LayerHolders* holders = cluster.add_layers();
    for (const int64_t rank : {0, 0, 0, -1, 0, layer == 2 ? -2 : -1}) holders->add_rank(rank);
  }
  const std::string text = cluster_table(cluster);
  EXPECT_THAT(text, HasSubstr("workers: 2 expected, 3 joins, 1 losses, 0 refused; placement 7"));
  EXPECT_THAT(text, HasSubstr("      9.0 MB           30"));
  EXPECT_THAT(text, HasSubstr("; has taken 12.0 MB for experts\n"));
  EXPECT_THAT(text, HasSubstr("30 (75.0 %)"));
  EXPECT_THAT(text, HasSubstr("10 (25.0 %)"));
  EXPECT_THAT(text, HasSubstr("; heartbeat missed\n"));
  EXPECT_THAT(text, HasSubstr("layer 0-1    coordinator: 3,5   rank 0: 0-2,4\n"));
  EXPECT_THAT(text, HasSubstr("layer 2      nobody: 5   coordinator: 3   rank 0: 0-2,4\n"));
  EXPECT_THAT(text, Not(HasSubstr("itself holds")));
  EXPECT_THAT(text, Not(HasSubstr("memory")));
}

TEST(ClusterTable, SaysWhyAWorkerHasNoMoreExperts) {
  v1::Cluster cluster;
  v1::Worker* worker = cluster.add_workers();
  worker->set_state("active");
  worker->set_experts(8);
  worker->set_max_experts(9);
  EXPECT_THAT(cluster_table(cluster), Not(HasSubstr("memory")));
  worker->set_max_experts(8);
  EXPECT_THAT(cluster_table(cluster), HasSubstr("; its memory takes no more than 8 experts\n"));
  worker->clear_max_experts();
  worker->set_load_failure("could not load 3 experts: no such file");
  EXPECT_THAT(cluster_table(cluster), HasSubstr("; could not load 3 experts: no such file\n"));
}

TEST(ClusterTable, BeforeTheStartThereIsNothingToPlace) {
  v1::Cluster cluster;
  cluster.set_expected_workers(2);
  const std::string text = cluster_table(cluster);
  EXPECT_THAT(text, HasSubstr("experts not handed out yet"));
  EXPECT_THAT(text, Not(HasSubstr("where experts live")));
}

TEST(DraftingTable, ShowsAcceptanceDepthWaitAndWorkers) {
  v1::Load load;
  v1::Drafting drafting;
  EXPECT_EQ(drafting_table(drafting, load), "");
  load.set_verify_passes(20);
  load.set_drafted_tokens(30);
  load.set_accepted_drafts(21);
  drafting.set_passes(60);
  drafting.add_drafted_by_position(20);
  drafting.add_drafted_by_position(10);
  drafting.add_accepted_by_position(16);
  drafting.add_accepted_by_position(5);
  drafting.set_run_ahead_drafts(25);
  drafting.set_draft_wait_seconds(1);
  drafting.set_step_seconds(99);
  drafting.set_verify_steps(10);
  drafting.set_distinct_experts(63);
  drafting.set_slowest_experts(35);
  v1::DraftWorkers* workers = drafting.mutable_draft_workers();
  workers->set_quarantined(2);
  v1::DraftWorker* worker = workers->add_workers();
  worker->set_worker_id("d0");
  worker->set_state("serving");
  const std::string text = drafting_table(drafting, load);
  EXPECT_THAT(text, HasSubstr("30 drafts in 20 passes of 60, 21 accepted, 25 run-ahead"));
  EXPECT_THAT(text, HasSubstr("accepted at position 1: 80 %, 2: 50 %\n"));
  EXPECT_THAT(text, HasSubstr("mean depth 0.50, wait for drafts 1.00 % of step time\n"));
  EXPECT_THAT(text, HasSubstr("a step with drafts: 6.3, the busiest holder's 3.5\n"));
  EXPECT_THAT(text, HasSubstr("2 quarantined"));
  EXPECT_THAT(text, HasSubstr("d0               serving"));
}

}  // namespace
}  // namespace brigade::launcher
