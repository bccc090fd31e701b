#include "launcher/cli/cluster_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

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
  cluster.mutable_workers(1)->set_last_loss("heartbeat missed");
  for (int layer = 0; layer < 3; ++layer) {
    v1::LayerHolders* holders = cluster.add_layers();
    for (const int64_t rank : {0, 0, 0, -1, 0, layer == 2 ? -2 : -1}) holders->add_rank(rank);
  }
  const std::string text = cluster_table(cluster);
  EXPECT_THAT(text, HasSubstr("workers: 2 expected, 3 joins, 1 losses, 0 refused; placement 7"));
  EXPECT_THAT(text, HasSubstr("30 (75.0 %)"));
  EXPECT_THAT(text, HasSubstr("10 (25.0 %)"));
  EXPECT_THAT(text, HasSubstr("; heartbeat missed\n"));
  EXPECT_THAT(text, HasSubstr("layer 0-1    coordinator: 3,5   rank 0: 0-2,4\n"));
  EXPECT_THAT(text, HasSubstr("layer 2      nobody: 5   coordinator: 3   rank 0: 0-2,4\n"));
  EXPECT_THAT(text, Not(HasSubstr("itself holds")));
}

TEST(ClusterTable, BeforeTheStartThereIsNothingToPlace) {
  v1::Cluster cluster;
  cluster.set_expected_workers(2);
  const std::string text = cluster_table(cluster);
  EXPECT_THAT(text, HasSubstr("experts not handed out yet"));
  EXPECT_THAT(text, Not(HasSubstr("where experts live")));
}

}  // namespace
}  // namespace brigade::launcher
