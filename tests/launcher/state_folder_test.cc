// The folder of a running cluster: who may hold it, what a dead supervisor leaves.
#include "launcher/supervisor/state_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

namespace brigade::launcher {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class StateFolderTest : public testing::Test {
 protected:
  StateFolderTest() : path_(absl::StrCat(testing::TempDir(), "state_", getpid())) {
    fs::remove_all(path_);
  }
  ~StateFolderTest() override { fs::remove_all(path_); }

  std::string path_, note_;
};

TEST_F(StateFolderTest, OneHolderAtATimeAndOnlyItsOwnerEnters) {
  {
    auto folder = StateFolder::acquire(path_, &note_);
    ASSERT_TRUE(folder.ok()) << folder.status();
    ASSERT_TRUE(folder->write_supervisor().ok());
    struct stat found = {};
    ASSERT_EQ(stat(path_.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0700u);
    EXPECT_TRUE(has_supervisor(path_));
    const auto second = StateFolder::acquire(path_, &note_);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr(absl::StrCat("up already (supervisor ", getpid(), ")")));
    folder->remove_all_but_logs();
  }
  EXPECT_FALSE(has_supervisor(path_));
  ASSERT_TRUE(StateFolder::acquire(path_, &note_).ok());
  EXPECT_EQ(note_, "") << "it had ended in order";
}

TEST_F(StateFolderTest, FoldersOthersMayEnterAreRefused) {
  fs::create_directory(path_);
  fs::permissions(path_, fs::perms(0750));
  EXPECT_THAT(std::string(StateFolder::acquire(path_, &note_).status().message()),
              HasSubstr("others may enter it"));
  fs::remove_all(path_);
  fs::create_directory(path_ + "_elsewhere");
  fs::create_directory_symlink(path_ + "_elsewhere", path_);
  EXPECT_THAT(std::string(StateFolder::acquire(path_, &note_).status().message()),
              HasSubstr("not a folder"));
  fs::remove(path_);
  fs::remove(path_ + "_elsewhere");
}

TEST_F(StateFolderTest, LeftoversOfADeadSupervisorAreKilled) {
  tests::ChildProcess left({"/bin/sleep", "60"});
  {
    auto folder = StateFolder::acquire(path_, &note_);
    ASSERT_TRUE(folder.ok());
    ASSERT_TRUE(folder->write_supervisor().ok());
    folder->write_process("w", left.pid());
  }
  ASSERT_TRUE(StateFolder::acquire(path_, &note_).ok());
  EXPECT_EQ(left.wait(), 128 + SIGKILL);
  EXPECT_THAT(note_, HasSubstr("killed 1 process"));
}

TEST_F(StateFolderTest, ARecycledPidIsNotTakenForTheProcess) {
  tests::ChildProcess other({"/bin/sleep", "60"});
  auto identity = identify(other.pid());
  ASSERT_TRUE(identity.has_value());
  EXPECT_TRUE(is_alive(*identity));
  identity->start_ticks -= 1;
  EXPECT_FALSE(is_alive(*identity));
  EXPECT_FALSE(signal_process(*identity, SIGKILL));
  {
    auto folder = StateFolder::acquire(path_, &note_);
    ASSERT_TRUE(folder->write_supervisor().ok());
    std::ofstream(path_ + "/processes/w") << identity->to_text();
  }
  ASSERT_TRUE(StateFolder::acquire(path_, &note_).ok());
  EXPECT_TRUE(identify(other.pid()).has_value()) << "another process with the pid lives on";
}

TEST(StateFolderPath, NamesThatAreNoFolderNames) {
  for (const char* name : {"", "a/b", "..", ".hidden", "a b"}) {
    EXPECT_FALSE(state_folder_path(name).ok()) << name;
  }
  EXPECT_TRUE(state_folder_path("demo-1.x_y").ok());
  EXPECT_EQ(*state_folder_path("demo", "/run/x/"), "/run/x/");
}

TEST(ProcessIdentity, TextReadsBack) {
  const auto self = identify(getpid());
  ASSERT_TRUE(self.has_value());
  const auto again = parse_identity(self->to_text());
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(is_alive(*again));
  EXPECT_FALSE(parse_identity("1 2 x").has_value()) << "init is never ours";
  EXPECT_FALSE(parse_identity("junk").has_value());
}

}  // namespace
}  // namespace brigade::launcher
