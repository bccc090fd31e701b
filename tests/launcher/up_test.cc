// `brigade up`, `down`, `ps`, `restart` as programs, over stub processes: order of start and end,
// restarts, and that nothing stays behind however the supervisor ends.
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

constexpr const char* kQuickRestarts =
    "  restart:\n    first_delay: 20ms\n    longest_delay: 100ms\n    max_restarts: 3\n";

bool is_ready(const json& process) { return process["ready"] == true; }

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

TEST(Up, KilledWorkerStartsAgain) {
  StubCluster cluster(2, kQuickRestarts);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  const pid_t first = cluster.process("w-0")["pid"];
  ASSERT_EQ(kill(first, SIGKILL), 0);
  EXPECT_THAT(cluster.line_with(*up, "ended with"),
              HasSubstr("supervisor  | w-0 ended with signal 9 (Killed); starts again in 20ms "
                        "(restart 1 of at most 3)"));
  EXPECT_TRUE(cluster.wait_for("w-0", [&](const json& p) {
    return is_ready(p) && p["restarts"] == 1 && p["pid"] != first;
  }));
  EXPECT_EQ(cluster.process("w-1")["restarts"], 0);
}

TEST(Up, AnEarlierLifesRegistrationIsNotTakenForReadiness) {
  StubCluster cluster(1, kQuickRestarts);
  cluster.tell("coordinator", "believe");  // slow to see that a worker is lost
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  cluster.tell("w", "join-when-told");
  ASSERT_EQ(kill(cluster.process("w")["pid"], SIGKILL), 0);
  ASSERT_TRUE(cluster.wait_for(
      "w", [](const json& p) { return p["restarts"] == 1 && p["state"] == "running"; }));
  for (int i = 0; i < 3; ++i)
    EXPECT_FALSE(is_ready(cluster.process("w"))) << "asked anew each time";
  std::ofstream(cluster.folder() + "/w.go") << "go";
  EXPECT_TRUE(cluster.wait_for("w", is_ready));
}

TEST(Up, WorkerThatKeepsEndingIsGivenUpAndCanBeRestarted) {
  StubCluster cluster(2, kQuickRestarts);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  cluster.tell("w-0", "exit 3");
  ASSERT_EQ(kill(cluster.process("w-0")["pid"], SIGKILL), 0);
  EXPECT_TRUE(cluster.wait_for("w-0", [](const json& p) { return p["state"] == "failed"; }));
  const json failed = cluster.process("w-0");
  EXPECT_EQ(failed["restarts"], 3);
  EXPECT_EQ(failed["pid"], -1);
  EXPECT_THAT(failed["detail"].get<std::string>(),
              HasSubstr("ended with exit code 3 after 3 restarts in 10m"));
  EXPECT_TRUE(is_ready(cluster.process("coordinator"))) << "the cluster goes on";
  cluster.tell("w-0", "");
  std::string said;
  EXPECT_EQ(cluster.run({"restart", cluster.file(), "w-0"}, &said), 0) << cluster.stderr_text();
  EXPECT_THAT(said, HasSubstr("w-0 runs again and is ready"));
  EXPECT_TRUE(is_ready(cluster.process("w-0")));
}

TEST(Up, FailureBeforeReadyEndsAllAndShowsWhy) {
  StubCluster cluster(2, kQuickRestarts);
  cluster.tell("w-1", "say no such tensor\nexit 3");
  const auto up = cluster.up();
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("w-1         | no such tensor"));
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("w-1 ended with exit code 3 after 3 restarts"));
  EXPECT_EQ(cluster.started().size(), 6u) << "coordinator, w-0, w-1 four times";
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, RefusalIsNotRetried) {
  StubCluster cluster(1, kQuickRestarts);
  cluster.tell("coordinator", "say bad model\nexit 2");
  const auto up = cluster.up({"--detach"});
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("coordinator | bad model"));
  EXPECT_EQ(cluster.started().size(), 1u);
}

TEST(Up, NotReadyInTime) {
  StubCluster cluster(1);
  cluster.tell("coordinator", "never-ready");
  const auto up = cluster.up({"--timeout", "0.5"});
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(),
              HasSubstr("not ready within 500ms: coordinator: told to be never ready"));
  EXPECT_TRUE(cluster.all_gone());
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

TEST(Up, KilledCoordinatorComesBackAtItsPorts) {
  StubCluster cluster(1, kQuickRestarts);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  const json before = cluster.ps();
  ASSERT_EQ(kill(cluster.process("coordinator")["pid"], SIGKILL), 0);
  EXPECT_TRUE(cluster.wait_for("coordinator",
                               [](const json& p) { return is_ready(p) && p["restarts"] == 1; }));
  EXPECT_EQ(cluster.ps()["api"], before["api"]);
  EXPECT_EQ(cluster.process("w")["restarts"], 0) << "workers wait for it";
}

TEST(Up, SecondSignalEndsAtOnce) {
  StubCluster cluster(2);
  for (const char* name : {"coordinator", "w-0", "w-1"}) cluster.tell(name, "hang");
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  up->signal(SIGINT);
  ASSERT_NE(cluster.line_with(*up, "ending in order"), "");
  ASSERT_TRUE(cluster.wait_for_event("coordinator term"));
  up->signal(SIGINT);
  EXPECT_EQ(up->wait(absl::Seconds(20)), 0) << "the grace time is 35 s";
  EXPECT_EQ(cluster.event("w-0 term"), -1) << "the coordinator had not ended";
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, DownByForceAfterItsTimeout) {
  StubCluster cluster(1);
  cluster.tell("coordinator", "hang");
  const auto up = cluster.up({"--detach"});
  ASSERT_EQ(up->wait(), 0) << cluster.stderr_text();
  std::string said;
  EXPECT_EQ(cluster.run({"down", cluster.file(), "--timeout", "0.2"}, &said), 0);
  EXPECT_THAT(said, HasSubstr("stub is down, by force"));
  EXPECT_TRUE(cluster.all_gone());
}

TEST(Up, KilledSupervisorLeavesNothing) {
  StubCluster cluster(2);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  ASSERT_EQ(kill(cluster.process("w-0")["pid"], SIGSTOP), 0);  // cannot end by itself
  up->signal(SIGKILL);
  EXPECT_EQ(up->wait(), 128 + SIGKILL);
  EXPECT_TRUE(cluster.all_gone());
  EXPECT_EQ(cluster.run({"ps", cluster.file()}), 3);
  // The folder that is left does not stand in the way.
  const auto again = cluster.up({"--detach"});
  EXPECT_EQ(again->wait(), 0) << cluster.stderr_text();
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("cleaned what a dead supervisor ("));
  EXPECT_EQ(cluster.run({"down", cluster.file()}), 0);
}

TEST(Up, StoppedSupervisorCanBeBroughtDown) {
  StubCluster cluster(1);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  up->signal(SIGSTOP);
  const auto down = cluster.brigade({"down", cluster.file()});
  EXPECT_EQ(up->wait(), 128 + SIGKILL);  // reaped here, as init would
  EXPECT_EQ(down->wait(), 0) << cluster.stderr_text();
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

TEST(Up, InterruptedWhileItStarts) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--detach"}}) {
    StubCluster cluster(1);
    cluster.tell("coordinator", "never-ready");
    const auto up = cluster.up(flags);
    ASSERT_TRUE(cluster.wait_for_event("w started"));
    up->signal(SIGINT);
    EXPECT_EQ(up->wait(), 4);
    EXPECT_GE(cluster.event("coordinator ended"), 0);
    EXPECT_TRUE(cluster.all_gone());
  }
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
