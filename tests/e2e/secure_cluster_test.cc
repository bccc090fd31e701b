// A cluster of real processes from one cluster file, with mutual TLS and a token for every role,
// made by deploy/make_secrets.sh: who gets in where.
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "launcher/client.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr char kSecurity[] = R"(
coordinator: {threads: 1, port: 0, control_port: 0, kv_memory_bytes: 32M}
workers: [{name: station, threads: 1}]
security:
  tls:
    {cert: secrets/coordinator.pem, key: secrets/coordinator.key, ca: secrets/ca.pem,
     client_ca: secrets/ca.pem, peer_cert: secrets/peer.pem, peer_key: secrets/peer.key}
  tokens:
    {client: secrets/client.token, operator: secrets/operator.token, worker: secrets/worker.token}
)";

class SecureClusterTest : public testing::Test {
 protected:
  void SetUp() override {
    make_secrets("secrets");
    std::ofstream(file_) << "model: {path: " << source_dir() << "/models/demo/target}" << kSecurity;
    coordinator_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{program_folder() + "/brigade-coordinator", "--cluster", file_,
                                 "--port-file", path("port"), "--control-port-file",
                                 path("control_port")},
        path("coordinator.log"));
    ASSERT_TRUE(absl::SimpleAtoi(wait_for_file(path("control_port")), &control_port_))
        << read_file(path("coordinator.log"));
    ASSERT_TRUE(absl::SimpleAtoi(wait_for_file(path("port")), &port_));
  }

  std::string path(const std::string& name) const { return folder_.path() + name; }

  void make_secrets(const std::string& name) const {
    ChildProcess made({source_dir() + "/deploy/make_secrets.sh", path(name), "127.0.0.1"});
    ASSERT_EQ(made.wait(), 0);
  }

  std::unique_ptr<ChildProcess> start_worker(const std::string& log,
                                             const std::vector<std::string>& flags) const {
    std::vector<std::string> argv = {program_folder() + "/brigade-expert-worker",
                                     "--cluster",
                                     file_,
                                     "--name",
                                     "station",
                                     "--join",
                                     absl::StrCat("127.0.0.1:", control_port_)};
    argv.insert(argv.end(), flags.begin(), flags.end());
    return std::make_unique<ChildProcess>(argv, path(log));
  }

  std::unique_ptr<launcher::Client> client(const std::string& role, bool shows_certificate = true,
                                           const std::string& authority = "secrets") const {
    launcher::ConnectOptions options;
    options.server = absl::StrCat("127.0.0.1:", port_);
    options.ca = path(authority + "/ca.pem");
    if (shows_certificate) {
      options.cert = path("secrets/peer.pem");
      options.key = path("secrets/peer.key");
    }
    if (!role.empty()) options.token_file = path("secrets/" + role + ".token");
    auto made = launcher::Client::create(options);
    EXPECT_TRUE(made.ok()) << made.status();
    return *std::move(made);
  }

  static absl::StatusOr<v1::GetStatusResponse> status_of(launcher::Client& client) {
    return client.status(absl::Now() + absl::Seconds(5));
  }

  bool comes_up(launcher::Client& client) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(40);
    while (absl::Now() < deadline) {
      const auto status = status_of(client);
      if (status.ok() && status->ready()) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  }

  const TempFolder folder_;
  const std::string file_ = path("cluster.yaml");
  int port_ = 0, control_port_ = 0;
  std::unique_ptr<ChildProcess> coordinator_;
};

TEST_F(SecureClusterTest, EveryRoleHasItsDoor) {
  make_secrets("others");
  // Before the right one, so that the place is free: another role's token, no certificate, one that
  // trusts another authority.
  const auto wrong_role =
      start_worker("wrong_role.log", {"--token-file", path("secrets/client.token")});
  const auto strange =
      start_worker("strange.log", {"--tls-cert", path("others/peer.pem"), "--tls-key",
                                   path("others/peer.key"), "--rejoin-timeout", "0.5"});
  const auto trusts_others =
      start_worker("trusts_others.log", {"--ca", path("others/ca.pem"), "--rejoin-timeout", "0.5"});
  EXPECT_EQ(wrong_role->wait(), 2);
  EXPECT_NE(read_file(path("wrong_role.log")).find("this port needs a worker token"),
            std::string::npos)
      << read_file(path("wrong_role.log"));
  EXPECT_EQ(strange->wait(), 1) << read_file(path("strange.log"));
  EXPECT_EQ(trusts_others->wait(), 1) << read_file(path("trusts_others.log"));

  const auto worker = start_worker("worker.log", {});
  const auto user = client("client"), operates = client("operator");
  ASSERT_TRUE(comes_up(*user)) << read_file(path("coordinator.log"))
                               << read_file(path("worker.log"));
  EXPECT_FALSE(status_of(*user)->has_cluster());
  const auto whole = status_of(*operates);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_EQ(whole->cluster().workers_size(), 1);
  EXPECT_EQ(whole->cluster().workers(0).worker_id(), "station");
  EXPECT_EQ(whole->cluster().workers(0).state(), "active");
  EXPECT_EQ(status_of(*client("worker")).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(status_of(*client("")).status().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(status_of(*client("client", false)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status_of(*client("client", true, "others")).status().code(),
            absl::StatusCode::kUnavailable);

  v1::GenerateRequest request;
  request.set_text("Once upon a time");
  request.set_max_tokens(8);
  int tokens = 0;
  const absl::Status generated = user->generate(request, absl::Now() + absl::Seconds(30),
                                                [&tokens](const v1::GenerateResponse& message) {
                                                  tokens += message.has_token() ? 1 : 0;
                                                  return true;
                                                });
  EXPECT_TRUE(generated.ok()) << generated;
  EXPECT_EQ(tokens, 8);
  coordinator_->signal(SIGTERM);
  EXPECT_EQ(coordinator_->wait(), 0) << read_file(path("coordinator.log"));
  EXPECT_EQ(worker->wait(), 0) << read_file(path("worker.log"));
}

}  // namespace
}  // namespace brigade::tests
