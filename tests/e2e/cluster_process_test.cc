// A coordinator and expert workers as real processes: the words of the one-process server, and what
// happens when whole parts of the cluster go away or do not fit together.
#include <csignal>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

std::vector<StreamedAnswer> answers_of(ProcessCluster& cluster,
                                       const std::vector<v1::GenerateRequest>& requests) {
  std::vector<StreamedAnswer> answers;
  for (const auto& request : requests) {
    const auto answer = stream_once(cluster.client(), request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    answers.push_back(answer.value_or(StreamedAnswer()));
  }
  return answers;
}

std::vector<StreamedAnswer> answers_of_one_process(
    const std::vector<v1::GenerateRequest>& requests, const std::vector<std::string>& flags = {}) {
  ProcessCluster alone({.workers = 0, .coordinator_flags = flags});
  EXPECT_TRUE(alone.start_all()) << alone.why();
  return answers_of(alone, requests);
}

TEST(ClusterProcessTest, TwoWorkersWriteTheSameWords) {
  for (const char* wire : {"f32", "bf16"}) {
    const std::vector<std::string> flags = {"--wire-dtype", wire};
    const auto requests = story_requests(4, 40);
    const auto expected = answers_of_one_process(requests, flags);
    ProcessCluster cluster({.workers = 2, .coordinator_flags = flags, .worker_flags = flags});
    ASSERT_TRUE(cluster.start_all()) << cluster.why();
    EXPECT_EQ(answers_of(cluster, requests), expected) << wire;
    const auto status = cluster.status();
    ASSERT_TRUE(status.ok()) << status.status();
    ASSERT_EQ(status->cluster().workers_size(), 2);
    for (const v1::Worker& worker : status->cluster().workers()) {
      EXPECT_GT(worker.rows_sent(), 0);
      EXPECT_GT(worker.experts(), 0);
    }
    EXPECT_EQ(status->cluster().coordinator_expert_bytes(), 0);
  }
}

TEST(ClusterProcessTest, AllWorkersKilledTheCoordinatorTakesOverAndGivesBack) {
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

TEST(ClusterProcessTest, AWorkerKilledWhileItLoadsIsReplaced) {
  const auto requests = story_requests(2, 30);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_coordinator()) << cluster.why();
  cluster.start_worker(0);
  cluster.start_worker(1);
  // From its first moments on, again and again: before it registers, while it loads, while it links.
  for (int i = 0; i < 6; ++i) {
    absl::SleepFor(absl::Milliseconds(20 + 15 * i));
    cluster.kill_worker(1);
    cluster.start_worker(1);
  }
  ASSERT_TRUE(cluster.wait_ready()) << cluster.coordinator_log() << cluster.worker_log(1);
  ASSERT_TRUE(cluster.wait_whole(2)) << cluster.coordinator_log() << cluster.worker_log(1);
  EXPECT_EQ(answers_of(cluster, requests), expected);
}

TEST(ClusterProcessTest, WorkersWaitForANewCoordinatorOrExit) {
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

TEST(ClusterProcessTest, SigtermToAWorkerMovesItsExperts) {
  const auto requests = story_requests(4, 150);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  StreamLoad load(cluster.client(), requests, expected);
  load.start(4);
  absl::SleepFor(absl::Milliseconds(50));
  cluster.worker(1)->signal(SIGTERM);
  EXPECT_EQ(cluster.worker(1)->wait(), 0) << cluster.worker_log(1);
  ASSERT_TRUE(cluster.wait_whole(1)) << cluster.coordinator_log();
  load.stop();
  EXPECT_EQ(load.failed(), 0) << load.first_problem();
  EXPECT_EQ(load.changed(), 0) << load.first_problem();
}

TEST(ClusterProcessTest, SigtermToTheCoordinatorEndsTheWorkers) {
  ProcessCluster cluster({.workers = 2});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  cluster.coordinator()->signal(SIGTERM);
  EXPECT_EQ(cluster.coordinator()->wait(), 0) << cluster.coordinator_log();
  EXPECT_EQ(cluster.worker(0)->wait(), 0) << cluster.worker_log(0);
  EXPECT_EQ(cluster.worker(1)->wait(), 0) << cluster.worker_log(1);
}

TEST(ClusterProcessTest, WhatDoesNotFitIsRefusedWithASentence) {
  struct Case {
    std::string model;
    std::vector<std::string> flags;
    const char* says;
  };
  const Case cases[] = {
      {"", {"--wire-dtype", "bf16"}, "numerics"},
      {source_dir() + "/tests/data/golden/mixtral_many_experts", {}, "fingerprint"},
  };
  for (const Case& wrong : cases) {
    ProcessCluster cluster({.worker_model = wrong.model, .workers = 1, .worker_flags = wrong.flags});
    ASSERT_TRUE(cluster.start_coordinator()) << cluster.why();
    cluster.start_worker(0);
    EXPECT_EQ(cluster.worker(0)->wait(), 2) << cluster.worker_log(0);
    EXPECT_THAT(cluster.worker_log(0), HasSubstr(wrong.says));
    auto status = cluster.status();
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (status.ok() && status->cluster().workers_refused() == 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(5));
      status = cluster.status();
    }
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->cluster().workers_refused(), 1);
    EXPECT_FALSE(status->ready());
  }
}

}  // namespace
}  // namespace brigade::tests
