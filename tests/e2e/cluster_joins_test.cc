// Who may join as real processes: a name is one live process's, and nobody is given more experts
// than its memory takes.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

TEST(ClusterJoinsTest, ASecondProcessOfANameIsRefusedUntilTheFirstIsGone) {
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  const std::string log = cluster.log_file("rival");
  ChildProcess rival(cluster.worker_argv(1), log);
  EXPECT_EQ(rival.wait(), 2) << read_file(log);
  EXPECT_THAT(read_file(log), HasSubstr("another process has that name"));
  EXPECT_THAT(read_file(log),
              testing::ContainsRegex("as rank [01] since "));  // who came first is open
  auto status = cluster.status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->cluster().workers_joined(), 2);
  EXPECT_EQ(status->cluster().workers_lost(), 0);
  EXPECT_EQ(status->cluster().workers_refused(), 1);
  // A killed one is replaced at once.
  cluster.kill_worker(1);
  cluster.start_worker(1);
  ASSERT_TRUE(cluster.wait_whole(2)) << cluster.coordinator_log() << cluster.worker_log(1);
  EXPECT_EQ(cluster.status()->cluster().workers_refused(), 1);
}

TEST(ClusterJoinsTest, ASmallWorkerIsGivenWhatItsMemoryTakes) {
  const auto requests = story_requests(1, 24);
  std::vector<StreamedAnswer> answers;
  for (const char* memory : {"", "2M"}) {
    const std::vector<std::string> flags = {"--memory", memory};
    ProcessCluster cluster(
        {.workers = 2, .worker_flags = *memory ? flags : std::vector<std::string>()});
    ASSERT_TRUE(cluster.start_all()) << cluster.why();
    auto answer = stream_once(cluster.client(), requests[0]);
    ASSERT_TRUE(answer.ok()) << answer.status();
    answers.push_back(*std::move(answer));
    const auto status = cluster.status();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->cluster().workers_lost(), 0) << cluster.coordinator_log();
    for (const v1::Worker& worker : status->cluster().workers()) {
      EXPECT_GT(worker.experts(), 0);
      if (*memory == 0) continue;
      EXPECT_EQ(worker.experts(), worker.max_experts());
      EXPECT_LE(worker.expert_bytes(), 2 << 20);
    }
    EXPECT_EQ(status->cluster().coordinator_expert_bytes() > 0, *memory != 0);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

}  // namespace
}  // namespace brigade::tests
