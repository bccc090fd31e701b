// The GPU path as real processes over the emulated module: the tokens and log-probabilities of the
// CPU, bit for bit, however requests, workers, data plane and drafts are arranged.
#include <bit>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/gpu_processes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr absl::Duration kPatience = absl::Seconds(90);
constexpr char kForbiddenUse[] = "NCCL stand-in:";

template <typename Condition>
bool eventually(Condition condition) {
  for (const absl::Time deadline = absl::Now() + kPatience; !condition();) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// FNV-1a over token ids and the bits of their log-probabilities.
uint64_t hash_of(const std::vector<StreamedAnswer>& answers) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i) hash = (hash ^ (value >> (8 * i) & 255)) * 0x100000001b3u;
  };
  for (const StreamedAnswer& answer : answers) {
    for (const int64_t id : answer.ids) add(static_cast<uint64_t>(id));
    for (const uint64_t bits : answer.logprobs) add(bits);
  }
  return hash;
}

TEST(GpuProcessTest, GoldenTokensOfTwoFamilies) {
  const size_t tokens = is_long_run() ? 64 : 12;
  for (const char* family : {"llama_gqa_tied", "mixtral_top2"}) {
    SCOPED_TRACE(family);
    const std::string model = absl::StrCat(source_dir(), "/tests/data/golden/", family);
    const auto golden = nlohmann::json::parse(std::ifstream(model + "/golden.json"));
    std::vector<std::vector<int64_t>> prompts;
    for (const auto& prompt : golden["prompts"]) prompts.push_back(prompt["ids"]);
    const auto requests = id_requests(prompts, static_cast<int>(tokens), /*greedy_only=*/true);
    ProcessCluster gpu({.model = model, .workers = 0, .coordinator_flags = gpu_flags(0)});
    ASSERT_TRUE(gpu.start_all()) << gpu.why();
    const auto answers = answers_of(gpu.client(), requests, requests.size());
    ASSERT_FALSE(answers.empty());
    for (size_t i = 0; i < answers.size(); ++i) {
      std::vector<int64_t> expected = golden["prompts"][i]["greedy_ids"];
      expected.resize(tokens);
      EXPECT_EQ(answers[i].ids, expected) << "prompt " << i;
    }
    EXPECT_EQ(answers, answers_on_cpu(model, requests)) << "bits of a CPU";
  }
}

struct Arrangement {
  int workers;
  const char* plane;
  bool drafts;
  std::string text() const {
    return absl::StrCat(workers, " workers, data plane ", plane, drafts ? ", drafts" : "");
  }
};

class GpuClusterTest : public testing::Test {
 protected:
  void start(const Arrangement& how) {
    std::vector<std::string> coordinator, worker;
    if (how.workers > 0) coordinator = worker = {"--data-plane", how.plane};
    const std::string port_file = folder_.path() + "/control_port";
    std::remove(port_file.c_str());
    if (how.drafts) {
      coordinator.insert(coordinator.end(), {"--drafts", "--speculation", "4"});
      if (how.workers == 0) {
        coordinator.insert(coordinator.end(),
                           {"--control-listen", "127.0.0.1:0", "--control-port-file", port_file});
      }
    }
    cluster_ = std::make_unique<ProcessCluster>(
        ProcessClusterOptions{.workers = how.workers,
                              .coordinator_flags = gpu_flags(0, coordinator),
                              .worker_flags = gpu_flags(1, worker),
                              .lost_after = absl::Seconds(20)});
    ASSERT_TRUE(cluster_->start_all()) << cluster_->why();
    if (!how.drafts) return;
    std::string address = cluster_->control_address();
    if (how.workers == 0) address = "127.0.0.1:" + wait_for_file(port_file);
    while (address.back() == '\n') address.pop_back();
    const std::string log = folder_.path() + "/draft.log";
    std::remove(log.c_str());
    draft_ = std::make_unique<ChildProcess>(
        gpu_command({"brigade-draft-worker", "--join", address, "--model",
                     source_dir() + "/models/demo/draft", "--name", "d0", "--threads", "1"}),
        log);
    ASSERT_TRUE(eventually([&] {
      return read_file(log).find("drafting for the coordinator") != std::string::npos;
    })) << read_file(log);
  }

  static std::vector<std::string> gpu_command(std::vector<std::string> words) {
    words[0] = program_folder() + "/" + words[0];
    const auto flags = gpu_flags(1);
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  }

  // The ways in which the arrangement must show that it was what it claims.
  void check_used(const Arrangement& how) {
    const auto status = cluster_->status();
    ASSERT_TRUE(status.ok()) << status.status();
    EXPECT_EQ(status->cluster().workers_size(), how.workers);
    for (const v1::Worker& worker : status->cluster().workers()) EXPECT_GT(worker.rows_sent(), 0);
    EXPECT_EQ(status->cluster().workers_lost(), 0);
    if (how.drafts) {
      EXPECT_GT(status->load().drafted_tokens(), 0);
    }
    std::string logs = cluster_->coordinator_log();
    if (how.workers > 0) {
      EXPECT_THAT(logs, HasSubstr(absl::StrCat("; data plane ", how.plane)));
    }
    for (int i = 0; i < how.workers; ++i) logs += cluster_->worker_log(i);
    EXPECT_THAT(logs, Not(HasSubstr(kForbiddenUse)));
  }

  TempFolder folder_;
  std::unique_ptr<ProcessCluster> cluster_;
  std::unique_ptr<ChildProcess> draft_;
};

TEST_F(GpuClusterTest, OneHashForEveryArrangement) {
  std::vector<Arrangement> all = {{2, "nccl", true}, {1, "host", false}};
  if (is_long_run()) {
    all = {{0, "host", false}, {0, "host", true}};
    for (const int workers : {1, 2}) {
      for (const char* plane : {"nccl", "host"}) {
        for (const bool drafts : {false, true}) all.push_back({workers, plane, drafts});
      }
    }
  }
  const auto requests = is_long_run() ? story_requests(8, 24) : story_requests(4, 8);
  const std::vector<size_t> batches =
      is_long_run() ? std::vector<size_t>{1, 3, 8} : std::vector<size_t>{1, 4};
  const auto expected = answers_on_cpu("", requests);
  std::printf("CPU: %016llx\n", static_cast<unsigned long long>(hash_of(expected)));
  for (const Arrangement& how : all) {
    SCOPED_TRACE(how.text());
    ASSERT_NO_FATAL_FAILURE(start(how));
    for (const size_t at_once : batches) {
      const absl::Time begin = absl::Now();
      const auto answers = answers_of(cluster_->client(), requests, at_once);
      EXPECT_EQ(answers, expected) << at_once << " requests at once";
      std::printf("%s, %zu at once: %016llx, %.1f s\n", how.text().c_str(), at_once,
                  static_cast<unsigned long long>(hash_of(answers)),
                  absl::ToDoubleSeconds(absl::Now() - begin));
    }
    // How soon the first draft comes is a matter of time.
    EXPECT_TRUE(!how.drafts || eventually([&] {
      EXPECT_EQ(answers_of(cluster_->client(), requests, 4), expected);
      const auto status = cluster_->status();
      return !status.ok() || status->load().drafted_tokens() > 0;
    }));
    check_used(how);
    draft_.reset();
    cluster_.reset();
  }
}

// A GPU among CPUs: the numerics are the same, so such workers may join.
TEST_F(GpuClusterTest, WorkersOnTheCpuJoinACoordinatorOnAGpu) {
  const std::string model = source_dir() + "/tests/data/golden/mixtral_top2";
  const auto requests = id_requests({{38, 75, 9, 8, 3}, {1, 2, 3}}, 8);
  ProcessCluster cluster({.model = model,
                          .workers = 1,
                          .coordinator_flags = gpu_flags(0, {"--data-plane", "host"}),
                          .lost_after = absl::Seconds(20)});
  ASSERT_TRUE(cluster.start_all()) << cluster.why();
  EXPECT_EQ(answers_of(cluster.client(), requests, 2), answers_on_cpu(model, requests));
}

// NCCL connects no GPU with itself: on a machine with one, rows go through host memory unasked.
TEST_F(GpuClusterTest, OneGpuForAllNeedsNoFlag) {
  ASSERT_EQ(setenv("BRIGADE_EMULATION_DEVICES", "1", 1), 0);
  const std::string model = source_dir() + "/tests/data/golden/mixtral_top2";
  const auto requests = id_requests({{38, 75, 9, 8, 3}, {1, 2, 3}}, 8);
  ProcessCluster cluster({.model = model,
                          .workers = 1,
                          .coordinator_flags = gpu_flags(0),
                          .worker_flags = gpu_flags(0),
                          .lost_after = absl::Seconds(20)});
  const bool started = cluster.start_all();
  unsetenv("BRIGADE_EMULATION_DEVICES");
  ASSERT_TRUE(started) << cluster.why();
  // Not by the coordinator alone, which takes over what nobody holds.
  ASSERT_TRUE(cluster.wait_whole(1)) << cluster.coordinator_log();
  EXPECT_EQ(answers_of(cluster.client(), requests, 2), answers_on_cpu(model, requests));
  const auto status = cluster.status();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->cluster().workers_lost(), 0);
}

struct Refusal {
  const char* devices;  // what the stand-in runtime shows
  const char* device;
  const char* says;
};

TEST(GpuProcessTest, WithoutTheDeviceEveryProgramSaysSoInOneSentence) {
  const Refusal cases[] = {
      {"none", "cuda:0",
       "no NVIDIA driver on this machine; use --device cpu, or a machine with a GPU"},
      {"0", "cuda:0", "the NVIDIA driver shows no GPU to this process"},
      {"2", "cuda:2", "device cuda:2 does not exist: this process sees 2 GPUs"},
  };
  const std::string demo = source_dir() + "/models/demo/";
  const std::vector<std::vector<std::string>> programs = {
      {"brigade-coordinator", "--model", demo + "target", "--listen", "127.0.0.1:0"},
      {"brigade-expert-worker", "--model", demo + "target", "--join", "127.0.0.1:1"},
      {"brigade-draft-worker", "--model", demo + "draft", "--join", "127.0.0.1:1"}};
  TempFolder folder;
  int number = 0;
  for (const Refusal& refusal : cases) {
    ASSERT_EQ(setenv("BRIGADE_EMULATION_DEVICES", refusal.devices, 1), 0);
    for (std::vector<std::string> argv : programs) {
      const std::string log = absl::StrCat(folder.path(), "/", ++number, ".log");
      const std::string name = std::exchange(argv[0], program_folder() + "/" + argv[0]);
      argv.insert(argv.end(), {"--device", refusal.device, "--cuda-module", emulated_module()});
      ChildProcess program(argv, log);
      EXPECT_EQ(program.wait(kPatience), 2) << read_file(log);
      const std::string text = read_file(log);
      const size_t at = text.find(absl::StrCat("\n", name, ": "));
      ASSERT_NE(at, std::string::npos) << text;
      const std::string sentence = text.substr(at + 1);
      EXPECT_THAT(sentence,
                  HasSubstr(absl::StrCat("--device ", refusal.device, ": ", refusal.says)));
      EXPECT_EQ(sentence.find('\n'), sentence.size() - 1) << sentence;
    }
  }
  unsetenv("BRIGADE_EMULATION_DEVICES");
}

}  // namespace
}  // namespace brigade::tests
