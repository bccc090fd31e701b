// Expert workers on emulated GPUs killed while clients stream and rows travel by the stand-in NCCL:
// the dead one's communicators are aborted, a new process gets fresh ones, no request fails and no
// word changes. Real processes; the long form kills 100 times.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu_processes.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr int kWorkers = 2;
constexpr int kStreams = 4;
constexpr absl::Duration kPatience = absl::Seconds(90);

// What the stand-in of NCCL says at the end of a process that asked for it.
struct NcclReport {
  long made = -1, aborted = -1, destroyed = -1, transfers = -1, forbidden = -1;
};

NcclReport nccl_report(const std::string& log) {
  NcclReport report;
  const size_t at = log.find("stand-in report:");
  if (at == std::string::npos) return report;
  std::sscanf(log.c_str() + at,
              "stand-in report: %ld communicators made, %ld aborted, %ld destroyed, %ld transfers, "
              "%ld forbidden uses",
              &report.made, &report.aborted, &report.destroyed, &report.transfers,
              &report.forbidden);
  return report;
}

int times(const std::string& words, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++count;
  return count;
}

class GpuKillsTest : public testing::Test {
 protected:
  template <typename Condition>
  bool comes_true(Condition condition) {
    for (const absl::Time deadline = absl::Now() + kPatience; absl::Now() < deadline;
         absl::SleepFor(absl::Milliseconds(2))) {
      const auto status = cluster_->status();
      if (status.ok() && condition(*status)) return true;
    }
    return false;
  }

  // Every worker was sent rows after this call.
  bool all_work() {
    std::vector<int64_t> before(kWorkers, -1);
    return comes_true([&](const v1::GetStatusResponse& status) {
      int working = 0;
      for (const v1::Worker& worker : status.cluster().workers()) {
        int64_t& first = before[static_cast<size_t>(worker.rank()) % kWorkers];
        if (first < 0 || worker.rows_sent() < first) first = worker.rows_sent();
        working += worker.state() == "active" && worker.rows_sent() > first;
      }
      return working == kWorkers;
    });
  }

  void kill_one(StreamLoad& load, std::mt19937_64& random);
  void run(int kills, bool silent);
  void check_end(const StreamLoad& load, int kills);
  void check_reports(int kills, int lost);

  std::unique_ptr<ProcessCluster> cluster_;
  int hit_outstanding_ = 0;
  std::vector<double> held_up_ms_;  // from a kill until the last stream had a further token
};

void GpuKillsTest::kill_one(StreamLoad& load, std::mt19937_64& random) {
  ASSERT_TRUE(all_work()) << cluster_->coordinator_log();
  const int victim = static_cast<int>(random() % kWorkers);
  absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random() % 40000)));
  const auto before = cluster_->status();
  ASSERT_TRUE(before.ok()) << before.status();
  const int64_t killed_ns = absl::GetCurrentTimeNanos();
  cluster_->kill_worker(victim);
  std::vector<int64_t> last;
  ASSERT_TRUE(comes_true([&](const v1::GetStatusResponse& status) {
    last = load.last_token_ns();
    return status.cluster().workers_lost() > before->cluster().workers_lost() &&
           *std::min_element(last.begin(), last.end()) > killed_ns;
  })) << cluster_->coordinator_log();
  held_up_ms_.push_back(
      static_cast<double>(*std::max_element(last.begin(), last.end()) - killed_ns) / 1e6);
  const auto after = cluster_->status();
  ASSERT_TRUE(after.ok()) << after.status();
  hit_outstanding_ += after->cluster().replayed_rows() > before->cluster().replayed_rows();
  cluster_->start_worker(victim);
  ASSERT_TRUE(cluster_->wait_whole(kWorkers, kPatience))
      << cluster_->coordinator_log() << cluster_->worker_log(victim);
}

// A pair has two communicators, one for either direction. What fails in a group of NCCL takes the
// group's other pairs with it: then a worker that lives is lost too, and comes back.
void GpuKillsTest::check_reports(int kills, int lost) {
  cluster_->coordinator()->signal(SIGTERM);
  EXPECT_EQ(cluster_->coordinator()->wait(kPatience), 0) << cluster_->coordinator_log();
  std::string logs = cluster_->coordinator_log();
  const NcclReport report = nccl_report(logs);
  std::printf("coordinator: %ld communicators made, %ld aborted, %ld transfers\n", report.made,
              report.aborted, report.transfers);
  EXPECT_EQ(report.made, 2 * (kWorkers + lost));
  EXPECT_GE(report.aborted, 2 * lost);
  EXPECT_LE(lost - kills, times("is lost: transport error: ncclGroupEnd", logs));
  EXPECT_GT(report.transfers, 0);
  EXPECT_EQ(report.forbidden, 0) << logs;
  for (int i = 0; i < kWorkers; ++i) {
    EXPECT_EQ(cluster_->worker(i)->wait(kPatience), 0) << cluster_->worker_log(i);
    logs += cluster_->worker_log(i);
  }
  EXPECT_THAT(logs, testing::Not(testing::HasSubstr("NCCL stand-in:"))) << "a forbidden use";
}

void GpuKillsTest::run(int kills, bool silent) {
  const uint64_t seed = test_seed(5);
  SCOPED_TRACE(replay_note("gpu_kills_test", seed));
  std::mt19937_64 random(seed);
  ASSERT_EQ(setenv("BRIGADE_EMULATED_NCCL_REPORT", "1", 1), 0);
  ASSERT_EQ(setenv("BRIGADE_EMULATED_NCCL_SILENT", silent ? "1" : "0", 1), 0);
  const std::string model = source_dir() + "/tests/data/golden/mixtral_top2";
  const auto requests = id_requests({{38, 75, 9, 8, 3}, {1, 2, 3}, {7, 7, 41, 5}, {90, 4}}, 40);
  const auto expected = answers_on_cpu(model, requests);
  ProcessClusterOptions options;
  options.model = model;
  options.workers = kWorkers;
  options.coordinator_flags = gpu_flags(0, {"--data-plane", "nccl"});
  options.worker_flags = gpu_flags(1, {"--data-plane", "nccl"});
  options.lost_after = absl::Seconds(20);  // a killed one is noticed at once
  cluster_ = std::make_unique<ProcessCluster>(options);
  ASSERT_TRUE(cluster_->start_all()) << cluster_->why();
  StreamLoad load(cluster_->client(), requests, expected);
  load.start(kStreams);
  for (int i = 0; i < kills && !HasFatalFailure(); ++i) kill_one(load, random);
  load.stop();
  EXPECT_EQ(load.failed(), 0) << load.first_problem();
  EXPECT_EQ(load.changed(), 0) << load.first_problem();
  EXPECT_GT(load.completed(), 0);
  if (!HasFatalFailure()) check_end(load, kills);
}

void GpuKillsTest::check_end(const StreamLoad& load, int kills) {
  v1::GetStatusResponse end;
  EXPECT_TRUE(comes_true([&](const v1::GetStatusResponse& status) {
    end = status;
    return status.load().running_sequences() == 0 && status.load().kv_blocks_in_use() == 0 &&
           ProcessCluster::active_workers(status) == kWorkers &&
           status.cluster().workers_lost() >= kills &&
           status.cluster().workers_joined() == kWorkers + status.cluster().workers_lost();
  })) << end.DebugString();
  const int lost = static_cast<int>(end.cluster().workers_lost());
  std::sort(held_up_ms_.begin(), held_up_ms_.end());
  std::printf(
      "%d kills, %d while rows were outstanding, %lld rows sent again, %d other pairs lost; %lld "
      "answers, %lld failed, %lld changed; all streams go on after p50 %.0f ms, at most %.0f ms\n",
      kills, hit_outstanding_, static_cast<long long>(end.cluster().replayed_rows()), lost - kills,
      static_cast<long long>(load.completed()), static_cast<long long>(load.failed()),
      static_cast<long long>(load.changed()), held_up_ms_[held_up_ms_.size() / 2],
      held_up_ms_.back());
  if (kills >= 20) {
    EXPECT_GT(hit_outstanding_, 0);
  }
  check_reports(kills, lost);
}

// NCCL tells that the peer's process is gone.
TEST_F(GpuKillsTest, KilledWorkersLoseNothingAndComeBackWithFreshPairs) {
  run(is_long_run() ? 50 : 3, /*silent=*/false);
}

// It does not, as between GPUs of one host: transfers to the dead one hang until they are aborted.
TEST_F(GpuKillsTest, AlsoWhenNcclNoticesNothing) { run(is_long_run() ? 50 : 2, /*silent=*/true); }

}  // namespace
}  // namespace brigade::tests
