// Workers killed and stopped at random moments while eight clients stream: no request fails, no word
// changes. Real processes; the long form runs 200 rounds.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <random>
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

constexpr int kStreams = 8;
constexpr int kWorkers = 3;

std::vector<StreamedAnswer> answers_of_one_process(const std::vector<v1::GenerateRequest>& requests) {
  ProcessCluster alone({.workers = 0});
  EXPECT_TRUE(alone.start_all()) << alone.why();
  std::vector<StreamedAnswer> answers;
  for (const auto& request : requests) {
    const auto answer = stream_once(alone.client(), request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    answers.push_back(answer.value_or(StreamedAnswer()));
  }
  return answers;
}

int64_t percentile(std::vector<int64_t> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

struct Tally {
  int rounds = 0, kills = 0, stops = 0, continued = 0;
  int hit_outstanding = 0;      // rounds after which more rows had been sent again
  std::vector<int64_t> held_up_us;  // from the fault until the last stream had a further token
};

class ClusterFaultsTest : public testing::Test {
 protected:
  void run_rounds(int rounds, bool stop_some);
  void one_round(ProcessCluster& cluster, StreamLoad& load, std::mt19937_64& random, bool stop_it,
                 bool go_on);

  Tally tally_;
};

// Until every stream has had a token after `fault_ns`; the time that took.
int64_t wait_for_all_streams(const StreamLoad& load, int64_t fault_ns, absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  while (absl::Now() < deadline) {
    const std::vector<int64_t> seen = load.last_token_ns();
    if (std::all_of(seen.begin(), seen.end(), [&](int64_t ns) { return ns > fault_ns; })) {
      return (*std::max_element(seen.begin(), seen.end()) - fault_ns) / 1000;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  return -1;
}

std::string about(ProcessCluster& cluster) {
  const auto status = cluster.status();
  return status.ok() ? status->cluster().DebugString() + status->load().DebugString()
                     : std::string(status.status().message());
}

void ClusterFaultsTest::one_round(ProcessCluster& cluster, StreamLoad& load, std::mt19937_64& random,
                                  bool stop_it, bool go_on) {
  const auto before = cluster.status();
  ASSERT_TRUE(before.ok()) << before.status();
  const int victim = static_cast<int>(random() % kWorkers);
  absl::SleepFor(absl::Microseconds(static_cast<int64_t>(random() % 60000)));
  const int64_t fault_ns = absl::GetCurrentTimeNanos();
  if (stop_it) {
    cluster.worker(victim)->signal(SIGSTOP);
  } else {
    cluster.worker(victim)->signal(SIGKILL);
  }
  const int64_t held_up = wait_for_all_streams(load, fault_ns, absl::Seconds(30));
  ASSERT_GE(held_up, 0) << "a stream got no token within 30 s\n"
                        << cluster.coordinator_log() << about(cluster);
  tally_.held_up_us.push_back(held_up);
  // Lost, and noticed as such.
  absl::StatusOr<v1::GetStatusResponse> after;
  for (const absl::Time deadline = absl::Now() + absl::Seconds(20); absl::Now() < deadline;) {
    after = cluster.status();
    ASSERT_TRUE(after.ok()) << after.status();
    if (after->cluster().workers_lost() > before->cluster().workers_lost()) break;
    absl::SleepFor(absl::Milliseconds(2));
  }
  ASSERT_GT(after->cluster().workers_lost(), before->cluster().workers_lost());
  tally_.hit_outstanding +=
      after->cluster().replayed_rows() > before->cluster().replayed_rows();
  if (stop_it && go_on) {
    cluster.worker(victim)->signal(SIGCONT);
    ++tally_.continued;
  } else {
    cluster.worker(victim)->signal(SIGKILL);
    cluster.worker(victim)->wait();
    cluster.start_worker(victim);
  }
  ASSERT_TRUE(cluster.wait_whole(kWorkers)) << cluster.coordinator_log() << cluster.worker_log(victim);
  ++tally_.rounds;
  ++(stop_it ? tally_.stops : tally_.kills);
}

void ClusterFaultsTest::run_rounds(int rounds, bool stop_some) {
  const uint64_t seed = test_seed(11);
  SCOPED_TRACE(replay_note("cluster_faults_test", seed));
  std::mt19937_64 random(seed);
  const auto requests = story_requests(kStreams, 120);
  const auto expected = answers_of_one_process(requests);
  ProcessCluster cluster({.workers = kWorkers,
                          .heartbeat = absl::Milliseconds(50),
                          .lost_after = absl::Milliseconds(400)});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  StreamLoad load(cluster.client(), requests, expected);
  load.start(kStreams);
  for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
    // Every third of the stopped ones goes on after it was declared lost.
    const bool stop_it = stop_some && (round % 2 == 1 || rounds < 2);
    one_round(cluster, load, random, stop_it, stop_it && tally_.stops % 3 == 0);
  }
  load.stop();
  EXPECT_EQ(load.failed(), 0) << load.first_problem();
  EXPECT_EQ(load.changed(), 0) << load.first_problem();
  EXPECT_GT(load.completed(), 0);
  const auto status = cluster.status();
  ASSERT_TRUE(status.ok()) << status.status();
  const v1::Cluster& counts = status->cluster();
  std::printf("%d rounds: %d killed, %d stopped (%d went on after being declared lost); %lld answers, "
              "%lld failed, %lld changed\n",
              tally_.rounds, tally_.kills, tally_.stops, tally_.continued,
              static_cast<long long>(load.completed()), static_cast<long long>(load.failed()),
              static_cast<long long>(load.changed()));
  std::printf("%d rounds hit outstanding rows; rows sent again %lld, parked %lld; late answers %lld, "
              "refused frames %lld\n",
              tally_.hit_outstanding, static_cast<long long>(counts.replayed_rows()),
              static_cast<long long>(counts.parked_rows()),
              static_cast<long long>(counts.late_answers()),
              static_cast<long long>(counts.refused_frames()));
  std::printf("all streams go on after p50 %.1f ms, p99 %.1f ms; rows sent again by MoE layer:",
              static_cast<double>(percentile(tally_.held_up_us, 0.5)) / 1000,
              static_cast<double>(percentile(tally_.held_up_us, 0.99)) / 1000);
  for (const int64_t rows : counts.replayed_rows_by_layer()) {
    std::printf(" %lld", static_cast<long long>(rows));
  }
  std::printf("\n");
  EXPECT_GE(2 * tally_.hit_outstanding, tally_.rounds);
  if (rounds >= 100) {
    EXPECT_THAT(counts.replayed_rows_by_layer(), testing::Each(testing::Gt(0)));
    EXPECT_GE(counts.workers_joined(), kWorkers + rounds);
    EXPECT_GT(counts.refused_frames(), 0) << "what stopped workers sent after their loss";
  }
}

TEST_F(ClusterFaultsTest, KilledAndStoppedWorkersLoseNothing) {
  run_rounds(is_long_run() ? scaled(200, 4) : 4, true);
}

}  // namespace
}  // namespace brigade::tests
