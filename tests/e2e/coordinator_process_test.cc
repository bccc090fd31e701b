// The real programs: brigade-coordinator on the demo model, brigade talking to it. What only shows
// with processes: signals, exit codes, ports, a server killed in mid-stream.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;

constexpr const char* kPrompt = "Once upon a time";

class CoordinatorProcessTest : public testing::Test {
 protected:
  // A coordinator on `port` (0: any); port() is known when this returns.
  std::unique_ptr<ChildProcess> start(int port, const std::vector<std::string>& more = {}) {
    const std::string port_file =
        absl::StrCat(testing::TempDir(), "port_", getpid(), "_", ++starts_);
    log_ = port_file + ".log";
    std::remove(port_file.c_str());
    std::vector<std::string> argv = {program_folder() + "/brigade-coordinator",
                                     "--model",
                                     source_dir() + "/models/demo/target",
                                     "--listen",
                                     absl::StrCat("127.0.0.1:", port),
                                     "--port-file",
                                     port_file,
                                     "--metrics-listen",
                                     "",
                                     "--kv-memory",
                                     "32M",
                                     "--threads",
                                     "1"};
    argv.insert(argv.end(), more.begin(), more.end());
    auto process = std::make_unique<ChildProcess>(argv, log_);
    port_ = std::atoi(wait_for_file(port_file).c_str());
    EXPECT_GT(port_, 0) << read_file(log_);
    return process;
  }

  std::vector<std::string> brigade(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), program_folder() + "/brigade");
    arguments.push_back("--server");
    arguments.push_back(absl::StrCat("127.0.0.1:", port_));
    return arguments;
  }

  void wait_ready() {
    ChildProcess status(brigade({"status", "--wait-ready", "30"}));
    EXPECT_EQ(status.wait(absl::Seconds(40)), 0) << read_file(log_);
  }

  int starts_ = 0;
  int port_ = 0;
  std::string log_;
};

struct Events {
  std::string text;
  int tokens = 0, retries = 0;
  bool finished = false;

  void take(const std::string& line) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const std::string event = json["event"];
    if (event == "token" || event == "finished") text += json["text"].get<std::string>();
    tokens += event == "token";
    retries += event == "retry";
    finished |= event == "finished";
  }
};

TEST_F(CoordinatorProcessTest, KilledInMidStreamTheTextIsTheSame) {
  auto coordinator = start(0);
  wait_ready();
  const std::vector<std::string> arguments = {"generate", "-p",           kPrompt, "-t",
                                              "0.8",      "--seed",       "11",    "--max-tokens",
                                              "300",      "--ignore-eos", "--json"};
  Events whole;
  {
    ChildProcess client(brigade(arguments));
    while (auto line = client.read_line()) whole.take(*line);
    ASSERT_EQ(client.wait(), 0);
  }
  ASSERT_TRUE(whole.finished);
  ASSERT_EQ(whole.tokens, 300);

  Events broken;
  ChildProcess client(brigade(arguments));
  while (broken.tokens < 20) {
    const auto line = client.read_line();
    ASSERT_TRUE(line.has_value());
    broken.take(*line);
  }
  coordinator->signal(SIGKILL);
  ASSERT_EQ(coordinator->wait(), 128 + SIGKILL);
  coordinator = start(port_);
  while (auto line = client.read_line()) broken.take(*line);
  EXPECT_EQ(client.wait(), 0);
  EXPECT_GE(broken.retries, 1) << "the kill must have come in mid-stream";
  EXPECT_EQ(broken.tokens, 300);
  EXPECT_EQ(broken.text, whole.text);
}

TEST_F(CoordinatorProcessTest, SigtermDrainsAndASecondSignalStops) {
  auto coordinator = start(0, {"--grace", "20"});
  wait_ready();
  const auto endless = brigade({"generate", "-p", kPrompt, "--seed", "1", "--max-tokens", "700",
                                "--ignore-eos", "--json", "--retries", "0"});
  Events events;
  {
    ChildProcess client(endless);
    for (int i = 0; i < 5; ++i) client.read_line();
    coordinator->signal(SIGTERM);
    while (auto line = client.read_line()) events.take(*line);
    EXPECT_EQ(client.wait(), 0) << "the open stream finishes";
    EXPECT_TRUE(events.finished);
  }
  EXPECT_EQ(coordinator->wait(), 0) << read_file(log_);

  coordinator = start(0, {"--grace", "60"});
  wait_ready();
  ChildProcess client(brigade({"generate", "-p", kPrompt, "--max-tokens", "900", "--ignore-eos",
                               "--json", "--retries", "0"}));
  for (int i = 0; i < 5; ++i) client.read_line();
  const absl::Time begin = absl::Now();
  coordinator->signal(SIGINT);
  coordinator->signal(SIGTERM);
  EXPECT_TRUE(coordinator->wait(absl::Seconds(10)).has_value());
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(client.wait().has_value());
}

TEST_F(CoordinatorProcessTest, BadModelIsRefusedBeforeAnyPortOpens) {
  const std::string port_file = testing::TempDir() + "never_port";
  std::remove(port_file.c_str());
  const std::string log = testing::TempDir() + "bad_model.log";
  std::remove(log.c_str());
  ChildProcess process({program_folder() + "/brigade-coordinator", "--model",
                        source_dir() + "/tests", "--port-file", port_file},
                       log);
  EXPECT_EQ(process.wait(), 2);
  EXPECT_THAT(read_file(log), HasSubstr("config.json"));
  EXPECT_EQ(read_file(port_file), "");
}

TEST_F(CoordinatorProcessTest, ExitCodes) {
  const auto code = [](const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {program_folder() + "/brigade"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return ChildProcess(argv).wait();
  };
  EXPECT_EQ(code({"--help"}), 0);
  EXPECT_EQ(code({"generate", "--help"}), 0);
  EXPECT_EQ(code({"frobnicate"}), 2);
  EXPECT_EQ(code({"generate", "--no-such-flag"}), 2);
  EXPECT_EQ(code({"generate", "-p", "x", "--retries", "0", "--server", "127.0.0.1:1"}), 3);
  EXPECT_EQ(code({"status", "--server", "127.0.0.1:1"}), 3);
  EXPECT_EQ(code({"generate", "-p", "x", "--token-file", "/none"}), 2);
}

TEST_F(CoordinatorProcessTest, InterruptedClient) {
  auto coordinator = start(0);
  wait_ready();
  ChildProcess client(
      brigade({"generate", "-p", kPrompt, "--max-tokens", "900", "--ignore-eos", "--json"}));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(client.read_line().has_value());
  client.signal(SIGINT);
  EXPECT_EQ(client.wait(), 4);
  // Nothing stays behind at the server.
  bool idle = false;
  for (int i = 0; i < 100 && !idle; ++i) {
    ChildProcess status(brigade({"status", "--json"}));
    const nlohmann::json json = nlohmann::json::parse(status.read_all());
    idle = json["load"]["kv_blocks_in_use"] == "0" && json["load"]["running_sequences"] == "0";
  }
  EXPECT_TRUE(idle);
  ChildProcess refused(brigade({"generate", "-p", "x", "--top-p", "1.5"}));
  EXPECT_EQ(refused.wait(), 2);
}

}  // namespace
}  // namespace brigade::tests
