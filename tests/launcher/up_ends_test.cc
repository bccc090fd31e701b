// `brigade up` over stub processes that end or are killed: who starts again, who is given up, and
// that nothing stays behind however the supervisor itself ends.
#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/launcher/stub_cluster.h"

namespace brigade::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(UpEnds, KilledWorkerStartsAgain) {
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

TEST(UpEnds, AnEarlierLifesRegistrationIsNotTakenForReadiness) {
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

TEST(UpEnds, WorkerThatKeepsEndingIsGivenUpAndCanBeRestarted) {
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

TEST(UpEnds, FailureBeforeReadyEndsAllAndShowsWhy) {
  StubCluster cluster(2, kQuickRestarts);
  cluster.tell("w-1", "say no such tensor\nexit 3");
  const auto up = cluster.up();
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("w-1         | no such tensor"));
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("w-1 ended with exit code 3 after 3 restarts"));
  EXPECT_EQ(cluster.started().size(), 6u) << "coordinator, w-0, w-1 four times";
  EXPECT_TRUE(cluster.all_gone());
}

TEST(UpEnds, RefusalIsNotRetried) {
  StubCluster cluster(1, kQuickRestarts);
  cluster.tell("coordinator", "say bad model\nexit 2");
  const auto up = cluster.up({"--detach"});
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(), HasSubstr("coordinator | bad model"));
  EXPECT_EQ(cluster.started().size(), 1u);
}

TEST(UpEnds, NotReadyInTime) {
  StubCluster cluster(1);
  cluster.tell("coordinator", "never-ready");
  const auto up = cluster.up({"--timeout", "0.5"});
  EXPECT_EQ(up->wait(), 1);
  EXPECT_THAT(cluster.stderr_text(),
              HasSubstr("not ready within 500ms: coordinator: told to be never ready"));
  EXPECT_TRUE(cluster.all_gone());
}

TEST(UpEnds, KilledCoordinatorComesBackAtItsPorts) {
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

TEST(UpEnds, SecondSignalEndsAtOnce) {
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

TEST(UpEnds, DownByForceAfterItsTimeout) {
  StubCluster cluster(1);
  cluster.tell("coordinator", "hang");
  const auto up = cluster.up({"--detach"});
  ASSERT_EQ(up->wait(), 0) << cluster.stderr_text();
  std::string said;
  EXPECT_EQ(cluster.run({"down", cluster.file(), "--timeout", "0.2"}, &said), 0);
  EXPECT_THAT(said, HasSubstr("stub is down, by force"));
  EXPECT_TRUE(cluster.all_gone());
}

TEST(UpEnds, KilledSupervisorLeavesNothing) {
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

TEST(UpEnds, StoppedSupervisorCanBeBroughtDown) {
  StubCluster cluster(1);
  const auto up = cluster.up();
  ASSERT_NE(cluster.line_with(*up, "is up"), "") << cluster.stderr_text();
  up->signal(SIGSTOP);
  const auto down = cluster.brigade({"down", cluster.file()});
  EXPECT_EQ(up->wait(), 128 + SIGKILL);  // reaped here, as init would
  EXPECT_EQ(down->wait(), 0) << cluster.stderr_text();
  EXPECT_TRUE(cluster.all_gone());
}

TEST(UpEnds, InterruptedWhileItStarts) {
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

}  // namespace
}  // namespace brigade::tests
