// How the real brigade-expert-worker lives with a coordinator played by hand: coordinators that are
// killed or fall silent, signals, exit codes.
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "tests/e2e/expert_worker_process.h"

namespace brigade::tests {
namespace {

using testing::HasSubstr;
using ExpertWorkerLifeTest = ExpertWorkerProcessTest;

// The one coordinator is gone, another one answers at its port: the worker comes by itself, as a
// new incarnation, and still has its experts.
TEST_F(ExpertWorkerLifeTest, AKilledCoordinatorIsDialledAgain) {
  auto first = std::make_unique<ScriptedCoordinator>();
  const int port = first->port();
  auto worker = start(first->address());
  auto session = first->accept();
  ASSERT_NE(session, nullptr) << log();
  const uint64_t before = session->registration().incarnation();
  {
    WorkerLinksBed bed(demo_model());
    ASSERT_TRUE(bed.admit(*session));
    ASSERT_TRUE(bed.load(*session, {{0, 1, 2, 3}}).has_loaded());
    first.reset();
  }
  ScriptedCoordinator second({.port = port});
  session = second.accept();
  ASSERT_NE(session, nullptr) << log();
  EXPECT_NE(session->registration().incarnation(), before);
  WorkerLinksBed bed(demo_model());
  ASSERT_TRUE(bed.admit(*session));
  // Two of the four are still wanted, the others go.
  const auto loaded = bed.load(*session, {{1, 2}});
  ASSERT_TRUE(loaded.has_loaded());
  EXPECT_EQ(loaded.loaded().resident_bytes(), static_cast<int64_t>(2 * bed.whole().expert_bytes()));
  EXPECT_EQ(bed.compare(0, {1, 2}), "");
}

TEST_F(ExpertWorkerLifeTest, ASilentCoordinatorIsDialledAgain) {
  ScriptedCoordinator coordinator;
  auto worker = start(coordinator.address());
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  WorkerLinksBed bed(demo_model());
  ASSERT_TRUE(bed.admit(*session));
  ASSERT_TRUE(bed.load(*session, {{0, 1}}).has_loaded());
  EXPECT_FALSE(session->gone(absl::Milliseconds(1200))) << "heartbeats keep it";
  session->mute();
  EXPECT_TRUE(session->gone());
  auto again = coordinator.accept();
  ASSERT_NE(again, nullptr) << log();
  ASSERT_TRUE(bed.admit(*again));
  ASSERT_TRUE(bed.load(*again, {{0, 1}}).has_loaded());
  EXPECT_EQ(bed.compare(0, {0, 1}), "");
  // Stopped for longer than the coordinator would wait, then continued: it takes up its life.
  worker->signal(SIGSTOP);
  absl::SleepFor(absl::Milliseconds(1200));
  worker->signal(SIGCONT);
  EXPECT_FALSE(again->gone(absl::Milliseconds(300))) << log();
  EXPECT_EQ(bed.compare(0, {0, 1}), "");
}

TEST_F(ExpertWorkerLifeTest, SigtermDrains) {
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(demo_model());
  auto worker = start(coordinator.address());
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  ASSERT_TRUE(bed.load(*session, {{0, 1}}).has_loaded());
  worker->signal(SIGTERM);
  const auto leaving = session->next();
  ASSERT_TRUE(leaving && leaving->has_leaving()) << log();
  EXPECT_EQ(bed.compare(0, {0, 1}), "") << "it serves until it is dismissed";
  v1::CoordinatorMessage dismissed;
  dismissed.mutable_dismissed()->set_reason("drained");
  session->say(dismissed);
  EXPECT_EQ(worker->wait(), 0) << log();
  EXPECT_THAT(log(), HasSubstr("drained"));
}

TEST_F(ExpertWorkerLifeTest, ASecondSignalOrNoCoordinatorOrTheGraceEndsItToo) {
  ScriptedCoordinator coordinator;
  WorkerLinksBed bed(demo_model());
  auto worker = start(coordinator.address());
  auto session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  worker->signal(SIGTERM);
  const auto leaving = session->next();
  ASSERT_TRUE(leaving && leaving->has_leaving());
  worker->signal(SIGTERM);
  EXPECT_EQ(worker->wait(absl::Seconds(10)), 0) << log();

  worker = start(coordinator.address(), {"--grace", "0.3"});
  session = coordinator.accept();
  ASSERT_NE(session, nullptr) << log();
  ASSERT_TRUE(bed.admit(*session));
  worker->signal(SIGTERM);
  EXPECT_EQ(worker->wait(absl::Seconds(10)), 0) << log();
  EXPECT_THAT(log(), HasSubstr("grace"));

  worker = start("127.0.0.1:1");
  while (!absl::StrContains(log(), "no coordinator")) absl::SleepFor(absl::Milliseconds(10));
  worker->signal(SIGTERM);
  EXPECT_EQ(worker->wait(absl::Seconds(10)), 0) << log();
}

TEST_F(ExpertWorkerLifeTest, EndsWithoutACoordinatorAsToldOrAfterTheTimeout) {
  EXPECT_EQ(start("127.0.0.1:1", {"--rejoin-timeout", "0.5"})->wait(), 1);
  EXPECT_THAT(log(), HasSubstr("no coordinator at 127.0.0.1:1 for 500ms"));
  // Whoever started it is gone, and with it the other end of its stdin.
  EXPECT_EQ(start("127.0.0.1:1", {"--exit-on-stdin-eof"})->wait(), 0) << log();

  auto coordinator = std::make_unique<ScriptedCoordinator>();
  auto worker = start(coordinator->address(), {"--on-lost-coordinator", "exit"});
  auto session = coordinator->accept();
  ASSERT_NE(session, nullptr) << log();
  WorkerLinksBed bed(demo_model());
  ASSERT_TRUE(bed.admit(*session));
  coordinator.reset();
  EXPECT_EQ(worker->wait(), 1);
  EXPECT_THAT(log(), HasSubstr("is lost"));
}

}  // namespace
}  // namespace brigade::tests
