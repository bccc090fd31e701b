// `brigade up`, `down`, `ps`, `restart`, `logs` as programs, over stub processes: order of start
// and end, what is shown, other hosts. up_ends_test has what goes wrong.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/supervisor/process_identity.h"
#include "tests/launcher/stub_cluster.h"

namespace brigade::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

TEST(Up, StartsInOrderServesAndEndsInOrder) {
  StubCluster cluster(2);
  const auto up = cluster.up();
  EXPECT_THAT(cluster.line_with(*up, "is up"), HasSubstr("stub is up")) << cluster.stderr_text();
  EXPECT_LT(cluster.event("coordinator started"), cluster.event("w-0 started"));
  // Port 0 in the file: workers are told where the coordinator really listens.
  EXPECT_THAT(cluster.events()[static_cast<size_t>(cluster.event("w-1 started"))],
              HasSubstr("--cluster " + cluster.file() +
                        " --exit-on-stdin-eof --name w-1 --join 127.0.0.1:7"));
  for (const char* name : {"coordinator", "w-0", "w-1"}) {
    const json process = cluster.process(name);
    EXPECT_EQ(process["state"], "running") << name;
    EXPECT_EQ(process["ready"], true) << name;
    EXPECT_EQ(process["restarts"], 0) << name;
    EXPECT_EQ(process["host"], "local") << name;
  }
  std::string table;
  EXPECT_EQ(cluster.run({"ps", cluster.file()}, &table), 0);
  EXPECT_THAT(table, HasSubstr("expert worker"));

  std::string said;
  EXPECT_EQ(cluster.run({"down", cluster.file()}, &said), 0);
  EXPECT_THAT(said, HasSubstr("stub is down"));
  EXPECT_EQ(up->wait(), 0);
  EXPECT_LT(cluster.event("coordinator ended"), cluster.event("w-0 term"));
  EXPECT_LT(cluster.event("coordinator ended"), cluster.event("w-1 term"));
  EXPECT_GE(cluster.event("w-0 ended"), 0);
  EXPECT_GE(cluster.event("w-1 ended"), 0);
  EXPECT_TRUE(cluster.all_gone());
  EXPECT_EQ(cluster.run({"ps", cluster.file()}), 3);
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 3);
}

TEST(Up, DismissedWorkersAreNotStartedAgain) {
  StubCluster cluster(2, "  restart: {policy: always, first_delay: 1ms}\n");
  cluster.tell("coordinator", "dismiss");
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  up->signal(SIGTERM);
  EXPECT_EQ(up->wait(), 0);
  EXPECT_GE(cluster.event("w-0 dismissed"), 0);
  EXPECT_EQ(cluster.started().size(), 3u);
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, SecondUpIsRefused) {
  StubCluster cluster(1);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  const auto second = cluster.up();
  EXPECT_EQ(second->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(),
              HasSubstr(absl::StrCat("this cluster is up already (supervisor ", up->pid(), ")")));
  EXPECT_EQ(cluster.started().size(), 2u);
  EXPECT_TRUE(is_ready(cluster.process("w")));
}

TEST(Up, BadFileIsRefusedBeforeAnythingStarts) {
  StubCluster cluster(1, "  remote_shel: x\n");
  const auto up = cluster.up();
  EXPECT_EQ(up->wait(), 2);
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("cluster.yaml:13:3: launch.remote_shel"));
  EXPECT_TRUE(cluster.events().empty());
}

TEST(Up, RestartOfAWorkerAndOfTheCoordinator) {
  StubCluster cluster(1);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  const json before = cluster.ps();
  EXPECT_EQ(cluster.run({"restart", cluster.file(), "w"}), 0);
  EXPECT_EQ(cluster.event("coordinator term"), -1);
  EXPECT_NE(cluster.process("w")["pid"], before["processes"][1]["pid"]);

  EXPECT_EQ(cluster.run({"restart", cluster.file(), "coordinator"}), 0) << cluster.stderr_text();
  EXPECT_TRUE(cluster.wait_for("w", is_ready));
  EXPECT_EQ(cluster.ps()["api"], before["api"]) << "clients find it again";
  EXPECT_EQ(cluster.process("coordinator")["restarts"], 1);
  EXPECT_EQ(cluster.process("w")["restarts"], 2);
  EXPECT_EQ(cluster.run({"restart", cluster.file(), "nobody"}), 2);
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 0);
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, DetachedSupervisorOutlivesItsStarter) {
  StubCluster cluster(1);
  const auto up = cluster.up({"--detach"});
  EXPECT_THAT(cluster.line_with(*up, "is up"), HasSubstr("stub is up"));
  EXPECT_EQ(up->wait(), 0);
  EXPECT_TRUE(is_ready(cluster.process("w")));
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 0);
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, LogsArePrefixedStreamedAndKept) {
  StubCluster cluster(2, "");
  cluster.tell("w-0", "say hello from the first");
  const auto up = cluster.up({"--detach"});
  ASSERT_EQ(up->wait(), 0) << cluster.stderr_text();
  std::string text;
  EXPECT_EQ(cluster.run({"logs", cluster.file()}, &text), 0);
  EXPECT_THAT(text, HasSubstr("w-0         | hello from the first\n"));
  EXPECT_THAT(text, HasSubstr("supervisor  | stub is up"));
  const auto follower = cluster.brigade({"logs", cluster.file(), "w-0", "-f", "-n", "0"});
  cluster.tell("w-0", "say hello again");
  EXPECT_EQ(cluster.run({"restart", cluster.file(), "w-0"}), 0);
  EXPECT_EQ(follower->read_line(), "w-0        | hello again");
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 0);
  EXPECT_EQ(follower->wait(), 0) << "follows until it is down";
  EXPECT_EQ(cluster.run({"logs", cluster.file(), "w-0"}, &text), 0);
  EXPECT_THAT(text, HasSubstr("hello from the first"));
  EXPECT_EQ(cluster.run({"logs", cluster.file(), "w-7"}), 2);
}

TEST(Up, ForegroundStreamsWhatProcessesSay) {
  StubCluster cluster(1, kQuickRestarts);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  cluster.tell("w", "say back again");
  ASSERT_EQ(kill(cluster.process("w")["pid"], SIGKILL), 0);
  EXPECT_EQ(cluster.line_with(*up, "back again"), "w           | back again");
}

// Nobody reads what `up` prints: its processes and verbs go on, lines are left out and counted.
TEST(Up, ABlockedReaderStopsNothing) {
  constexpr int kLines = 100'000;
  StubCluster cluster(1);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  cluster.tell("w", absl::StrCat("say-many ", kLines));
  EXPECT_EQ(cluster.run({"restart", cluster.file(), "w"}), 0) << cluster.stderr_text();
  std::string logged;
  EXPECT_EQ(cluster.run({"logs", cluster.file(), "w", "-n", "1"}, &logged), 0);
  EXPECT_THAT(logged, HasSubstr(absl::StrCat("line ", kLines - 1, " of many")));
  EXPECT_NE(cluster.line_with(*up, "lines left out: see brigade logs)"), "") << "once read again";
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 0);
  EXPECT_EQ(up->wait(), 0);
  EXPECT_TRUE(cluster.all_gone());
}

// A stand-in for ssh: records its words and lets a shell read what ssh would send.
constexpr const char* kSsh = R"(#!/bin/sh
printf '%s\n' "$@" > "$BRIGADE_STUB_FOLDER/ssh.argv"
shift 2
exec sh -c "$*"
)";

constexpr const char* kTwoHosts = R"(
name: stub
model: {path: model}
hosts:
- {name: near, address: 127.0.0.1}
- {name: far, address: 192.0.2.1}
coordinator: {port: 0, control_port: 7, listen_address: 0.0.0.0}
workers:
- {name: here}
- {name: there, host: far}
security: {insecure: true, data_plane: trusted_network}
launch:
  program_folder: bin
  state_folder: state
  remote_shell: "FOLDER/ssh -q {host}"
)";

std::unique_ptr<StubCluster> two_hosts() {
  auto cluster = std::make_unique<StubCluster>();
  const std::string ssh = cluster->folder() + "/ssh";
  std::ofstream(ssh) << kSsh;
  std::filesystem::permissions(ssh, std::filesystem::perms::owner_all);
  cluster->write_file(absl::StrReplaceAll(kTwoHosts, {{"FOLDER", cluster->folder()}}));
  return cluster;
}

TEST(Up, AnotherHostIsReachedThroughTheRemoteShell) {
  const auto cluster = two_hosts();
  const auto up = cluster->up();
  ASSERT_NE(cluster->line_with(*up, "is up"), "") << cluster->stderr_text();
  EXPECT_EQ(
      read_file(cluster->folder() + "/ssh.argv"),
      absl::StrCat("-q\nfar\nexec ", cluster->folder(), "/bin/brigade-expert-worker --cluster ",
                   cluster->file(), " --exit-on-stdin-eof --name there --join 127.0.0.1:7\n"));
  EXPECT_EQ(cluster->process("there")["host"], "far");
  EXPECT_TRUE(is_ready(cluster->process("there")));
  EXPECT_EQ(cluster->run({"restart", cluster->file(), "there"}), 0) << cluster->stderr_text();
  EXPECT_EQ(cluster->run({"down", cluster->file()}), 0);
  EXPECT_GE(cluster->event("there eof"), 0) << "a signal here would not reach it";
  EXPECT_EQ(cluster->event("there term"), -1);
  EXPECT_GE(cluster->event("here term"), 0);
  EXPECT_TRUE(cluster->all_gone());
}

TEST(Up, KilledSupervisorLeavesNothingBehindTheRemoteShell) {
  const auto cluster = two_hosts();
  // As sshd does, the shell stays between us and the program.
  std::string ssh = read_file(cluster->folder() + "/ssh");
  std::ofstream(cluster->folder() + "/ssh")
      << absl::StrReplaceAll(ssh, {{"exec sh -c \"$*\"", "sh -c \"$*\"; exit $?"}});
  const auto up = cluster->up();
  ASSERT_NE(cluster->line_with(*up, "is up"), "") << cluster->stderr_text();
  up->signal(SIGKILL);
  up->wait();
  EXPECT_TRUE(cluster->all_gone());
  EXPECT_GE(cluster->event("there eof"), 0);
}

}  // namespace
}  // namespace brigade::tests
