// The whole as an operator runs it: brigade up on the demo model, the same words as one process
// gives, a worker restarted in mid-stream, and nothing left after brigade down. Once on one host,
// once over two network namespaces that stand in for hosts.
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

constexpr int kTokens = 300;

struct Answer {
  std::string text;
  int tokens = 0;
  bool finished = false;

  void take(const std::string& line) {
    const json event = json::parse(line);
    if (event["event"] == "token" || event["event"] == "finished") {
      text += event["text"].get<std::string>();
    }
    tokens += event["event"] == "token";
    finished |= event["event"] == "finished";
  }
};

class ClusterUpTest : public testing::Test {
 protected:
  ClusterUpTest() : folder_(absl::StrCat(testing::TempDir(), "cluster_up_", getpid())) {
    fs::create_directories(folder_);
  }
  ~ClusterUpTest() override {
    if (fs::exists(folder_ + "/state")) run({"down", file(), "--now"});
    if (!HasFailure()) fs::remove_all(folder_);
  }

  void write_file(const std::string& hosts_and_roles, const std::string& launch_keys = "") const {
    std::ofstream(file()) << "name: e2e\nmodel: {path: " << source_dir() << "/models/demo/target}\n"
                          << hosts_and_roles << "launch:\n  state_folder: state\n"
                          << launch_keys;
  }

  std::string file() const { return folder_ + "/cluster.yaml"; }

  std::unique_ptr<ChildProcess> start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), program_folder() + "/brigade");
    arguments.insert(arguments.begin(), prefix_.begin(), prefix_.end());
    return std::make_unique<ChildProcess>(arguments, folder_ + "/stderr");
  }
  int run(const std::vector<std::string>& arguments, std::string* output = nullptr) const {
    const auto process = start(arguments);
    const std::string text = process->read_all(absl::Seconds(90));
    if (output != nullptr) *output = text;
    return process->wait().value_or(-1);
  }
  json ps() const {
    std::string text;
    EXPECT_EQ(run({"ps", file(), "--json"}, &text), 0) << read_file(folder_ + "/stderr");
    return json::parse(text);
  }
  std::unique_ptr<ChildProcess> generate(const std::string& server,
                                         const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"generate",
                                          "-p",
                                          "Once upon a time",
                                          "-t",
                                          "0.8",
                                          "--seed",
                                          "11",
                                          "--max-tokens",
                                          absl::StrCat(kTokens),
                                          "--ignore-eos",
                                          "--json",
                                          "--retries",
                                          "0",
                                          "--server",
                                          server};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return start(arguments);
  }
  static Answer read(ChildProcess& client, Answer answer = {}) {
    while (auto line = client.read_line()) answer.take(*line);
    EXPECT_EQ(client.wait(), 0);
    EXPECT_TRUE(answer.finished);
    EXPECT_EQ(answer.tokens, kTokens);
    return answer;
  }
  // What a coordinator that holds all experts itself answers.
  std::string text_of_one_process() const {
    const std::string port_file = folder_ + "/port";
    ChildProcess coordinator({program_folder() + "/brigade-coordinator", "--model",
                              source_dir() + "/models/demo/target", "--listen", "127.0.0.1:0",
                              "--port-file", port_file, "--metrics-listen", "", "--kv-memory",
                              "32M", "--threads", "1"});
    const std::string server =
        absl::StrCat("127.0.0.1:", std::atoi(wait_for_file(port_file).c_str()));
    EXPECT_EQ(run({"status", "--wait-ready", "60", "--server", server}), 0);
    return read(*generate(server)).text;
  }

  // Starts it and returns the address of its API; *pids grows by its processes.
  std::string up(std::vector<pid_t>* pids) const {
    EXPECT_EQ(run({"up", "--detach", "--timeout", "90", file()}), 0)
        << read_file(folder_ + "/stderr");
    const json all = ps();
    for (const json& process : all["processes"]) {
      EXPECT_EQ(process["ready"], true) << process;
      pids->push_back(process["pid"]);
    }
    return all["api"];
  }
  void down(const std::vector<pid_t>& pids) const {
    EXPECT_EQ(run({"down", file()}), 0) << read_file(folder_ + "/stderr");
    for (const pid_t pid : pids) EXPECT_NE(kill(pid, 0), 0) << pid << " still runs";
    EXPECT_EQ(run({"ps", file()}), 3);
  }

  const std::string folder_;
  std::vector<std::string> prefix_;  // of every `brigade`
};

TEST_F(ClusterUpTest, SameWordsAsOneProcessAlsoWhileAWorkerRestarts) {
  const std::string expected = text_of_one_process();
  write_file(
      "coordinator: {port: 0, control_port: 0, threads: 1, kv_memory_bytes: 32M}\n"
      "workers:\n- {name: worker, count: 2, threads: 1}\n");
  std::vector<pid_t> pids;
  const std::string api = up(&pids);
  ASSERT_EQ(pids.size(), 3u);
  EXPECT_EQ(read(*generate(api)).text, expected);

  Answer answer;
  const auto client = generate(api);
  while (answer.tokens < 20) {
    const auto line = client->read_line();
    ASSERT_TRUE(line.has_value());
    answer.take(*line);
  }
  const auto restart = start({"restart", file(), "worker-0"});
  EXPECT_EQ(read(*client, answer).text, expected);
  // One stream after the other until the worker is back: some are there at every moment of it.
  while (!restart->wait(absl::ZeroDuration())) EXPECT_EQ(read(*generate(api)).text, expected);
  EXPECT_EQ(restart->wait(), 0) << read_file(folder_ + "/stderr");
  EXPECT_THAT(restart->read_all(), HasSubstr("worker-0 runs again and is ready"));
  const json after = ps()["processes"];
  EXPECT_NE(after[1]["pid"], pids[1]);
  EXPECT_EQ(after[1]["restarts"], 1);
  EXPECT_EQ(after[2]["restarts"], 0);
  pids.push_back(after[1]["pid"]);
  down(pids);
}

// Two namespaces with an address each and a wire between them, named after this process.
class TwoNamespaces {
 public:
  TwoNamespaces() : near_(absl::StrCat("bn", getpid())), far_(absl::StrCat("bf", getpid())) {
    const std::string wire =
        absl::StrCat("ip link add near netns ", near_, " type veth peer name far netns ", far_);
    made_ = sh("ip netns add " + near_) && sh("ip netns add " + far_) && sh(wire) &&
            bring_up(near_, "near", "10.77.0.1") && bring_up(far_, "far", "10.77.0.2") &&
            carries(near_, "near");
  }
  ~TwoNamespaces() {
    sh("ip netns del " + near_);
    sh("ip netns del " + far_);
  }

  bool made() const { return made_; }
  const std::string& near() const { return near_; }
  const std::string& far() const { return far_; }

 private:
  static bool sh(const std::string& command) {
    return ChildProcess({"/bin/sh", "-c", command}).wait() == 0;
  }
  static bool bring_up(const std::string& name, const std::string& device,
                       const std::string& address) {
    const std::string ip = absl::StrCat("ip -n ", name, " ");
    return sh(absl::StrCat(ip, "addr add ", address, "/24 dev ", device)) &&
           sh(absl::StrCat(ip, "link set dev ", device, " up")) && sh(ip + "link set dev lo up");
  }
  // A wire carries some time after both of its ends are up.
  static bool carries(const std::string& name, const std::string& device) {
    for (int i = 0; i < 1000; ++i) {
      if (sh(absl::StrCat("ip -n ", name, " link show dev ", device, " | grep -q 'state UP'"))) {
        return true;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

  const std::string near_, far_;
  bool made_ = false;
};

constexpr const char* kSecurity = R"(
security:
  tls:
    cert: secrets/coordinator.pem
    key: secrets/coordinator.key
    ca: secrets/ca.pem
    client_ca: secrets/ca.pem
    peer_cert: secrets/peer.pem
    peer_key: secrets/peer.key
  tokens:
    client: secrets/client.token
    operator: secrets/operator.token
    worker: secrets/worker.token
  data_plane: trusted_network
)";

TEST_F(ClusterUpTest, SameWordsOverTwoHosts) {
  const TwoNamespaces hosts;
  if (!hosts.made()) GTEST_SKIP() << "skipped: network namespaces cannot be made here";
  const std::string expected = text_of_one_process();
  const std::string secrets = folder_ + "/secrets";
  ASSERT_EQ(ChildProcess({source_dir() + "/deploy/make_secrets.sh", secrets, "10.77.0.1"}).wait(),
            0);
  write_file(absl::StrCat(
                 "hosts:\n- {name: ", hosts.near(), ", address: 10.77.0.1}\n- {name: ", hosts.far(),
                 ", address: 10.77.0.2}\n"
                 "coordinator: {threads: 1, kv_memory_bytes: 32M}\n"
                 "workers:\n- {name: here, threads: 1}\n- {name: there, threads: 1, host: ",
                 hosts.far(), "}\n", kSecurity),
             "  remote_shell: ip netns exec {host}\n");
  prefix_ = {"/usr/bin/env", "ip", "netns", "exec", hosts.near()};
  std::vector<pid_t> pids;
  const std::string api = up(&pids);
  EXPECT_EQ(api, "10.77.0.1:50051");
  const auto client =
      generate(api, {"--ca", secrets + "/ca.pem", "--cert", secrets + "/peer.pem", "--key",
                     secrets + "/peer.key", "--token-file", secrets + "/client.token"});
  EXPECT_EQ(read(*client).text, expected);
  down(pids);
}

}  // namespace
}  // namespace brigade::tests
