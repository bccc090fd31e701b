// The coordinator with draft workers as real processes: the words of a coordinator without, in
// fewer passes, whatever the draft workers do.
#include <gmock/gmock.h>

#include <csignal>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/child_process.h"
#include "tests/support/lying_draft_worker.h"
#include "tests/support/process_cluster.h"
#include "tests/support/stream_load.h"
#include "tests/support/test_env.h"
#include "tests/support/tiny_checkpoint.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

std::string draft_folder() { return source_dir() + "/models/demo/draft"; }

template <typename Condition>
bool eventually(Condition condition, absl::Duration limit = absl::Seconds(30)) {
  const absl::Time deadline = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

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

class DraftClusterTest : public testing::Test {
 protected:
  // A coordinator that takes draft workers; expert workers besides, if wanted.
  std::unique_ptr<ProcessCluster> start(int workers, const std::string& speculation) {
    std::vector<std::string> flags = {"--drafts", "--speculation", speculation};
    if (workers == 0) {
      flags.insert(flags.end(), {"--control-listen", "127.0.0.1:0", "--control-port-file",
                                 folder_.file("control_port")});
    }
    auto cluster = std::make_unique<ProcessCluster>(
        ProcessClusterOptions{.workers = workers, .coordinator_flags = flags});
    EXPECT_TRUE(cluster->start_all()) << cluster->why() << cluster->coordinator_log();
    address_ = workers > 0 ? cluster->control_address()
                           : "127.0.0.1:" + read_file(folder_.file("control_port"));
    while (!address_.empty() && address_.back() == '\n') address_.pop_back();
    return cluster;
  }

  // Drafts once it has joined.
  std::unique_ptr<ChildProcess> start_draft() {
    std::remove(log_.c_str());
    auto draft = std::make_unique<ChildProcess>(
        std::vector<std::string>{program_folder() + "/brigade-draft-worker", "--join", address_,
                                 "--model", draft_folder(), "--name", "d0", "--threads", "1"},
        log_);
    EXPECT_TRUE(eventually([&] {
      return read_file(log_).find("drafting for the coordinator") != std::string::npos;
    })) << read_file(log_);
    return draft;
  }

  static std::vector<StreamedAnswer> expected(const std::vector<v1::GenerateRequest>& requests,
                                              int64_t* steps = nullptr) {
    ProcessCluster alone({.workers = 0});
    EXPECT_TRUE(alone.start_all()) << alone.why();
    auto answers = answers_of(alone, requests);
    const auto status = alone.status();
    if (steps != nullptr && status.ok()) *steps = status->load().steps();
    return answers;
  }

  ModelFolder folder_;
  const std::string log_ = folder_.file("draft.log");
  std::string address_;
};

TEST_F(DraftClusterTest, SameWordsInFewerPasses) {
  const auto requests = story_requests(4, 80);
  int64_t plain_steps = 0;
  const auto words = expected(requests, &plain_steps);
  for (const char* speculation : {"4", "auto"}) {
    auto cluster = start(0, speculation);
    auto draft = start_draft();
    const auto before = cluster->status();
    ASSERT_TRUE(before.ok()) << before.status();
    EXPECT_EQ(answers_of(*cluster, requests), words) << speculation;
    const auto after = cluster->status();
    ASSERT_TRUE(after.ok()) << after.status();
    const int64_t steps = after->load().steps() - before->load().steps();
    std::printf("speculation %s: %lld steps, %lld without drafts\n", speculation,
                static_cast<long long>(steps), static_cast<long long>(plain_steps));
    // Drafts are taken as far as they have come; how many have is a matter of time.
    EXPECT_LT(steps, plain_steps);
    draft->signal(SIGTERM);
    EXPECT_EQ(draft->wait(), 0) << read_file(log_);
  }
}

// At the port of the expert workers, killed in the middle of answers and started again.
TEST_F(DraftClusterTest, BesideExpertWorkersKilledHalfWay) {
  const auto requests = story_requests(4, 60);
  const auto words = expected(requests);
  for (const int workers : {1, 3}) {
    auto cluster = start(workers, workers == 1 ? "2" : "8");
    auto draft = start_draft();
    StreamLoad load(cluster->client(), requests, words);
    load.start(2);
    const auto two_more_answers = [&] {
      return eventually([&, wanted = load.completed() + 2] { return load.completed() >= wanted; });
    };
    const auto drafted = [&] {
      const auto status = cluster->status();
      return status.ok() ? status->load().drafted_tokens() : 0;
    };
    for (int life = 0; life < 2; ++life) {
      if (life > 0) draft = start_draft();
      EXPECT_TRUE(eventually([&, before = drafted()] { return drafted() > before + 20; }));
      draft->signal(SIGKILL);
      EXPECT_EQ(draft->wait(), 128 + SIGKILL);
      EXPECT_TRUE(two_more_answers());
    }
    load.stop();
    EXPECT_EQ(load.failed(), 0) << load.first_problem();
    EXPECT_EQ(load.changed(), 0) << load.first_problem();
  }
}

// Draft workers are killed, stopped, started again, and lie, while streams run.
TEST_F(DraftClusterTest, NothingThatDraftWorkersDoIsSeen) {
  const uint64_t seed = test_seed();
  SCOPED_TRACE(replay_note("draft_cluster_test", seed));
  std::mt19937_64 random(seed);
  const auto requests = story_requests(4, 60);
  const auto words = expected(requests);
  auto cluster = start(0, "4");
  const auto tokenizer = *runtime::Tokenizer::load(draft_folder() + "/tokenizer.json");
  LyingDraftWorker liar(address_, draft_folder(), *tokenizer, seed);
  auto draft = start_draft();
  StreamLoad load(cluster->client(), requests, words);
  load.start(3);
  const int rounds = scaled(is_long_run() ? 500 : 20, 5);
  int kills = 0, stops = 0;
  for (int round = 0; round < rounds; ++round) {
    absl::SleepFor(absl::Milliseconds(random() % 60));
    if (random() % 2 == 0) {
      draft->signal(SIGKILL);
      EXPECT_EQ(draft->wait(), 128 + SIGKILL);
      ++kills;
      absl::SleepFor(absl::Milliseconds(random() % 40));
      draft = start_draft();
    } else {
      draft->signal(SIGSTOP);
      absl::SleepFor(absl::Milliseconds(random() % 100));
      draft->signal(SIGCONT);
      ++stops;
    }
  }
  load.stop();
  EXPECT_EQ(load.failed(), 0) << load.first_problem();
  EXPECT_EQ(load.changed(), 0) << load.first_problem();
  EXPECT_GT(load.completed(), 0);
  EXPECT_GT(liar.lies(), 0);
  EXPECT_GT(liar.honest(), 0);
  std::printf("%d kills, %d stops, %lld lies in %lld streams, %lld answers\n", kills, stops,
              static_cast<long long>(liar.lies()), static_cast<long long>(liar.streams()),
              static_cast<long long>(load.completed()));
  EXPECT_TRUE(eventually([&] {
    const auto status = cluster->status();
    return status.ok() && status->load().running_sequences() == 0 &&
           status->load().kv_blocks_in_use() == 0;
  }));
}

}  // namespace
}  // namespace brigade::tests
