// A cluster over three hosts, played by network namespaces: a coordinator and two workers started
// by `brigade up` through the remote shell `ip netns exec {host}`. One link delays, loses and
// reorders; then it is cut until its worker counts as lost, and heals. No word changes. Needs root.
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/link_bed.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr int kBadLink = 1;  // between c and w1

class ClusterOverLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    auto bed = LinkBed::create(seed_, {{"c", "w0"}, {"c", "w1"}});
    if (!bed.ok()) GTEST_SKIP() << "skipped: needs " << bed.status().message();
    bed_ = *std::move(bed);
    std::string pattern = testing::TempDir() + "/over_links_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    write_cluster_file();
    // On the coordinator's host: all addresses can be reached from there.
    up_ = std::make_unique<ChildProcess>(on_host_c({brigade(), "up", folder_ + "/cluster.yaml"}),
                                         folder_ + "/up.log");
  }
  void TearDown() override {
    if (bed_ == nullptr) return;
    if (up_ != nullptr) {
      up_->signal(SIGTERM);
      EXPECT_EQ(up_->wait(), 0);
    }
    if (HasFailure()) std::cout << read_file(folder_ + "/up.log") << up_->read_all();
    std::filesystem::remove_all(folder_);
  }

  static std::string brigade() { return program_folder() + "/brigade"; }
  static std::string model() { return source_dir() + "/models/demo/target"; }

  void write_cluster_file() const {
    std::ofstream file(folder_ + "/cluster.yaml");
    const auto host = [&](const char* name, const char* address) {
      return absl::StrCat("  - name: ", bed_->namespace_of(name), "\n    address: ", address, "\n");
    };
    const auto worker = [&](const char* name) {
      return absl::StrCat("  - name: ", name, "\n    host: ", bed_->namespace_of(name),
                          "\n    threads: 1\n");
    };
    file << "name: over-links\nmodel:\n  path: " << model() << "\nhosts:\n"
         << host("c", "10.77.1.1") << host("w0", "10.77.1.2") << host("w1", "10.77.2.2")
         << "coordinator:\n  threads: 1\n  kv_memory_bytes: 32M\nworkers:\n"
         << worker("w0") << worker("w1") << "timeouts:\n  heartbeat: 50ms\n  lost_after: 400ms\n"
         << "security:\n  insecure: true\n  data_plane: trusted_network\n"
         << "launch:\n  remote_shell: ip netns exec {host}\n  state_folder: " << folder_
         << "/state\n";
  }

  std::vector<std::string> on_host_c(const std::vector<std::string>& command) const {
    std::vector<std::string> argv = {"/usr/bin/env", "ip", "netns", "exec",
                                     bed_->namespace_of("c")};
    argv.insert(argv.end(), command.begin(), command.end());
    return argv;
  }
  // A verb of the command line.
  std::vector<std::string> at_coordinator(std::vector<std::string> words) const {
    words.insert(words.begin(), brigade());
    words.insert(words.end(), {"--server", "10.77.1.1:50051"});
    return on_host_c(words);
  }
  static std::vector<std::string> generate(int tokens) {
    return {"generate", "--prompt",     "Once upon a time there was a", "--temperature",
            "0",        "--max-tokens", absl::StrCat(tokens),           "--ignore-eos"};
  }
  static std::string output_of(const std::vector<std::string>& argv) {
    ChildProcess process(argv);
    std::string text = process.read_all(absl::Seconds(60));
    EXPECT_EQ(process.wait(), 0);
    return text;
  }
  std::string words_of_one_process(int tokens) const {
    ChildProcess server({program_folder() + "/brigade-coordinator", "--model", model(), "--listen",
                         "127.0.0.1:0", "--port-file", folder_ + "/one.port", "--metrics-listen",
                         "", "--threads", "1", "--kv-memory", "32M"});
    const std::string port = wait_for_file(folder_ + "/one.port");
    std::vector<std::string> argv = generate(tokens);
    argv.insert(argv.begin(), brigade());
    argv.insert(argv.end(), {"--server", "127.0.0.1:" + port, "--wait-ready", "60"});
    return output_of(argv);
  }
  int active_workers() const {
    const std::string status = output_of(at_coordinator({"status", "--json"}));
    int count = 0;
    for (size_t at = 0; (at = status.find("\"active\"", at)) != std::string::npos; ++at) ++count;
    return count;
  }
  bool wait_for_workers(int count) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (active_workers() != count) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(50));
    }
    return true;
  }

  const uint64_t seed_ = test_seed();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, replay_note("cluster_over_links_test", seed_)};
  std::unique_ptr<LinkBed> bed_;
  std::string folder_;
  std::unique_ptr<ChildProcess> up_;
};

TEST_F(ClusterOverLinks, SaysTheSameWordsThroughBadWeatherAndAPartition) {
  const int few = 16, many = scaled(200, 60);
  const absl::Time start = absl::Now();
  const auto note = [&](const char* what) {
    std::cout << absl::FormatDuration(absl::Now() - start) << " " << what << "\n";
  };
  const std::string expected = words_of_one_process(many);
  note("one process has answered");
  ASSERT_FALSE(expected.empty());
  output_of(at_coordinator({"status", "--wait-ready", "60"}));
  ASSERT_TRUE(wait_for_workers(2));
  note("the cluster is up");
  for (const char* fault : {"delay 1", "jitter 0.5", "loss 0.02", "reorder 0.05"})
    bed_->set(kBadLink, fault);
  const std::string first = output_of(at_coordinator(generate(few)));
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(expected.compare(0, first.size() - 1, first, 0, first.size() - 1), 0)
      << first << "\ninstead of\n"
      << expected;
  EXPECT_GT(bed_->count(kBadLink, "there", "lost") + bed_->count(kBadLink, "back", "lost"), 0u);
  EXPECT_GT(bed_->count(kBadLink, "there", "passed"), 16u) << "rows went over the bad link";

  note("answered in bad weather");

  // Cut in the middle of an answer: the worker is lost, its rows are computed elsewhere.
  ChildProcess answer(at_coordinator(generate(many)));
  const uint64_t before = bed_->count(kBadLink, "there", "passed");
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (bed_->count(kBadLink, "there", "passed") < before + 20 && absl::Now() < deadline)
    absl::SleepFor(absl::Milliseconds(1));
  bed_->set(kBadLink, "cut");
  EXPECT_EQ(answer.read_all(absl::Seconds(60)), expected);
  EXPECT_EQ(answer.wait(), 0);
  EXPECT_TRUE(wait_for_workers(1));
  EXPECT_GT(bed_->count(kBadLink, "there", "cut") + bed_->count(kBadLink, "back", "cut"), 0u);
  note("answered through the cut");
  // It heals: the worker is back, and the words are the same.
  bed_->set(kBadLink, "heal");
  EXPECT_TRUE(wait_for_workers(2));
  note("healed");
  EXPECT_EQ(output_of(at_coordinator(generate(many))), expected);
}

}  // namespace
}  // namespace brigade::tests
