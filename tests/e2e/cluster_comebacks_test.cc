// Real processes of a cluster that are killed, all workers or the coordinator, and come back: no
// request fails and no word changes.
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_answers.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

TEST(ClusterComebacksTest, AllWorkersKilledTheCoordinatorTakesOverAndGivesBack) {
  const auto requests = story_requests(4, 200);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  StreamLoad load(cluster.client(), requests, expected);
  load.start(4);
  absl::SleepFor(absl::Milliseconds(100));
  cluster.kill_worker(0);
  cluster.kill_worker(1);
  ASSERT_TRUE(cluster.wait_whole(0)) << cluster.coordinator_log();
  const auto alone = cluster.status();
  ASSERT_TRUE(alone.ok());
  EXPECT_GT(alone->cluster().coordinator_expert_bytes(), 0);
  cluster.start_worker(0);
  cluster.start_worker(1);
  ASSERT_TRUE(cluster.wait_whole(2)) << cluster.coordinator_log();
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  int64_t left = 1;
  while (left > 0 && absl::Now() < deadline) {
    const auto status = cluster.status();
    ASSERT_TRUE(status.ok());
    left = status->cluster().coordinator_expert_bytes();
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_EQ(left, 0) << "the coordinator gives the experts back";
  load.stop();
  EXPECT_EQ(load.failed(), 0) << load.first_problem();
  EXPECT_EQ(load.changed(), 0) << load.first_problem();
}

TEST(ClusterComebacksTest, AWorkerKilledWhileItLoadsIsReplaced) {
  const auto requests = story_requests(2, 30);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_coordinator()) << cluster.why();
  cluster.start_worker(0);
  cluster.start_worker(1);
  // From its first moments on, again and again: before it registers, while it loads, while it
  // links.
  for (int i = 0; i < 6; ++i) {
    absl::SleepFor(absl::Milliseconds(20 + 15 * i));
    cluster.kill_worker(1);
    cluster.start_worker(1);
  }
  ASSERT_TRUE(cluster.wait_ready()) << cluster.coordinator_log() << cluster.worker_log(1);
  ASSERT_TRUE(cluster.wait_whole(2)) << cluster.coordinator_log() << cluster.worker_log(1);
  EXPECT_EQ(answers_of(cluster, requests), expected);
}

TEST(ClusterComebacksTest, WorkersWaitForANewCoordinatorOrExit) {
  const auto requests = story_requests(2, 30);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  cluster.kill_coordinator();
  ASSERT_TRUE(cluster.start_coordinator()) << cluster.why();  // on the same ports
  ASSERT_TRUE(cluster.wait_ready()) << cluster.coordinator_log() << cluster.worker_log(0);
  EXPECT_EQ(answers_of(cluster, requests), expected);
  EXPECT_FALSE(cluster.worker(0)->wait(absl::ZeroDuration()).has_value()) << "the same process";

  ProcessCluster leaving({.workers = 1, .worker_flags = {"--on-lost-coordinator", "exit"}});
  ASSERT_TRUE(leaving.start_all()) << leaving.why();
  leaving.kill_coordinator();
  EXPECT_EQ(leaving.worker(0)->wait(), 1) << leaving.worker_log(0);
  EXPECT_THAT(leaving.worker_log(0), HasSubstr("coordinator"));
}

}  // namespace
}  // namespace brigade::tests
