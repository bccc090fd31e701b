// One process over its lives, with shells in its place: grace, kill, groups, pipes.
#include "launcher/supervisor/managed_process.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/supervisor/log_reader.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

namespace asio = boost::asio;
using testing::Contains;
using testing::HasSubstr;

class ManagedProcessTest : public testing::Test {
 protected:
  ManagedProcessTest() : path_(absl::StrCat(testing::TempDir(), "managed_", getpid())) {
    std::filesystem::remove_all(path_);
    std::string note;
    folder_.emplace(*StateFolder::acquire(path_, &note));
  }
  ~ManagedProcessTest() override {
    process_ = nullptr;
    std::filesystem::remove_all(path_);
  }

  // A shell that runs `script`.
  ManagedProcess& make(const std::string& script, absl::Duration grace, bool remote = false) {
    PlannedProcess planned;
    planned.name = "p";
    planned.remote = remote;
    planned.argv = {"sh", "-c", script};
    planned.grace = grace;
    ManagedProcess::Callbacks callbacks;
    callbacks.changed = [] {};
    callbacks.note = [this](const std::string& note) { notes_.push_back(note); };
    callbacks.output = [this](const std::string& line) { lines_.push_back(line); };
    RestartRules rules;
    rules.first_delay = absl::Milliseconds(1);
    rules.max_restarts = 2;
    process_ = std::make_unique<ManagedProcess>(io_, planned, rules, *folder_, callbacks);
    return *process_;
  }

  // Runs the loop until it holds; false after 30 s.
  bool until(const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!holds() && absl::Now() < deadline) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(50));
    }
    return holds();
  }
  bool until_line(const std::string& line) {
    return until([&] { return std::find(lines_.begin(), lines_.end(), line) != lines_.end(); });
  }

  std::string path_;
  std::optional<StateFolder> folder_;
  asio::io_context io_;
  std::vector<std::string> notes_, lines_;
  std::unique_ptr<ManagedProcess> process_;
};

TEST_F(ManagedProcessTest, TermThenKillAfterTheGrace) {
  ManagedProcess& process =
      make("trap 'echo asked' TERM; echo up; while :; do sleep 0.01; done", absl::Milliseconds(200));
  process.start();
  ASSERT_TRUE(until_line("up"));
  const absl::Time begin = absl::Now();
  process.stop();
  EXPECT_EQ(process.state(), ProcessState::kStopping);
  ASSERT_TRUE(until([&] { return process.settled(); }));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(200));
  EXPECT_THAT(lines_, Contains("asked"));
  EXPECT_EQ(process.last_end()->signal, SIGKILL);
  EXPECT_EQ(process.state(), ProcessState::kExited) << "asked for: no failure, no restart";
  EXPECT_THAT(notes_, Contains(HasSubstr("did not end within 200ms and is killed")));
}

TEST_F(ManagedProcessTest, AStoppedProcessTakesItsTerm) {
  ManagedProcess& process =
      make("trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.01; done",
           absl::Seconds(60));
  process.start();
  ASSERT_TRUE(until_line("up"));
  kill(process.pid(), SIGSTOP);
  process.stop();
  EXPECT_TRUE(until([&] { return process.settled(); }));
  EXPECT_EQ(process.last_end()->exit_code, 0);
}

TEST_F(ManagedProcessTest, ARemoteOneSeesTheEndOfStdin) {
  ManagedProcess& process =
      make("trap 'echo asked' TERM; echo up; cat; echo end of stdin", absl::Seconds(60), true);
  process.start();
  ASSERT_TRUE(until_line("up"));
  process.stop();
  ASSERT_TRUE(until([&] { return process.settled(); }));
  EXPECT_THAT(lines_, Contains("end of stdin"));
  EXPECT_THAT(lines_, testing::Not(Contains("asked")));
}

TEST_F(ManagedProcessTest, WhatItStartedEndsWithIt) {
  ManagedProcess& process = make("sleep 60 & echo $!; exit 0", absl::Seconds(1));
  process.start();
  ASSERT_TRUE(until([&] { return process.settled() && !lines_.empty(); }));
  const pid_t grandchild = std::atoi(lines_[0].c_str());
  ASSERT_GT(grandchild, 1);
  EXPECT_TRUE(until([&] { return !identify(grandchild).has_value(); }));
}

TEST_F(ManagedProcessTest, LastWordsAreLogged) {
  ManagedProcess& process = make("printf 'one\\ntwo\\nno newline' >&2; kill -9 $$", absl::Seconds(1));
  process.start();
  ASSERT_TRUE(until([&] { return process.state() == ProcessState::kFailed; }));
  EXPECT_EQ(process.starts(), 3);
  EXPECT_EQ(lines_.size(), 9u) << "three lines in each of three lives";
  EXPECT_EQ(last_lines(path_, "p", 1)[0].text, "no newline");
  EXPECT_THAT(process.failure(), HasSubstr("signal 9 (Killed) after 2 restarts"));
}

TEST_F(ManagedProcessTest, LongLinesAreCut) {
  ManagedProcess& process =
      make("head -c 40000 /dev/zero | tr '\\0' x; echo", absl::Seconds(1));
  process.start();
  ASSERT_TRUE(until([&] { return process.settled(); }));
  size_t bytes = 0;
  for (const std::string& line : lines_) {
    EXPECT_LE(line.size(), 16384u);
    bytes += line.size();
  }
  EXPECT_EQ(bytes, 40000u);
}

TEST_F(ManagedProcessTest, AnotherProcessHoldsNoEndOfItsPipes) {
  ManagedProcess& process = make("cat; echo end of stdin", absl::Seconds(60), true);
  process.start();
  // Started later, it would inherit the first one's stdin if anything leaked.
  PlannedProcess other;
  other.name = "other";
  other.argv = {"sleep", "60"};
  other.grace = absl::Seconds(1);
  ManagedProcess second(io_, other, {}, *folder_,
                        {[] {}, [](const std::string&) {}, [](const std::string&) {}});
  second.start();
  process.stop();
  EXPECT_TRUE(until([&] { return process.settled(); }));
  EXPECT_THAT(lines_, Contains("end of stdin"));
  second.kill();
  EXPECT_TRUE(until([&] { return second.settled(); }));
}

TEST_F(ManagedProcessTest, AProgramThatIsNotThere) {
  ManagedProcess& process = make("", absl::Seconds(1));
  process.set_command({"/no/such/program"});
  process.start();
  EXPECT_EQ(process.state(), ProcessState::kFailed);
  EXPECT_THAT(process.failure(), HasSubstr("cannot start /no/such/program: No such file"));
  EXPECT_TRUE(process.settled());
}

}  // namespace
}  // namespace brigade::launcher
