// A coordinator and expert workers as real processes: the words of the one-process server, leaving
// in order, and what does not fit together. cluster_comebacks_test has what is killed and comes
// back.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_answers.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

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
