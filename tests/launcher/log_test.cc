// Logs: bounded by rotation, read back merged, followed over rotations.
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/supervisor/log_file.h"
#include "launcher/supervisor/log_reader.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

const absl::Time kBegin = absl::FromUnixMillis(1'700'000'000'123);

class LogTest : public testing::Test {
 protected:
  LogTest() : folder_(absl::StrCat(testing::TempDir(), "logs_", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/logs");
  }
  ~LogTest() override { fs::remove_all(folder_); }

  static std::vector<std::string> texts(const std::vector<LogLine>& lines) {
    std::vector<std::string> texts;
    for (const LogLine& line : lines) texts.push_back(line.process + ":" + line.text);
    return texts;
  }

  std::string folder_;
};

TEST_F(LogTest, RotationBoundsTheBytesAndKeepsTheLast) {
  const LogLimits limits = {.max_bytes = 400, .kept = 2};
  const std::string path = log_path(folder_, "a");
  LogFile log(path, limits);
  for (int i = 0; i < 100; ++i) log.write(absl::StrCat("line ", i), kBegin + absl::Seconds(i));
  int64_t bytes = 0, files = 0;
  for (const auto& entry : fs::directory_iterator(folder_ + "/logs")) {
    bytes += static_cast<int64_t>(entry.file_size());
    EXPECT_LE(entry.file_size(), 400u);
    ++files;
  }
  EXPECT_EQ(files, 3);
  EXPECT_GT(bytes, 800);
  EXPECT_EQ(log.lost_lines(), 0);
  EXPECT_THAT(texts(last_lines(folder_, "a", 2)), ElementsAre("a:line 98", "a:line 99"));
  // Over the border of two files, without a gap.
  const auto many = last_lines(folder_, "a", 20);
  ASSERT_EQ(many.size(), 20u);
  for (size_t i = 0; i < many.size(); ++i) EXPECT_EQ(many[i].text, absl::StrCat("line ", 80 + i));
}

TEST_F(LogTest, LastLinesOfSeveralAreMergedByTime) {
  LogFile a(log_path(folder_, "a")), b(log_path(folder_, "b"));
  a.write("1", kBegin);
  b.write("2", kBegin + absl::Microseconds(1));
  a.write("3", kBegin + absl::Microseconds(2));
  b.write("", kBegin + absl::Microseconds(3));
  EXPECT_THAT(texts(last_lines(folder_, std::vector<std::string>{"a", "b"}, 3)), ElementsAre("b:2", "a:3", "b:"));
  EXPECT_EQ(last_lines(folder_, "a", 1)[0].time, "2023-11-14T22:13:20.123002Z");
  EXPECT_THAT(logged_processes(folder_), ElementsAre("a", "b"));
}

TEST_F(LogTest, FollowerMissesNothingOverRotations) {
  const LogLimits limits = {.max_bytes = 300, .kept = 2};
  LogFile log(log_path(folder_, "a"), limits);
  log.write("before", kBegin);
  LogFollower follower(folder_, {"a"}, /*from_beginning=*/false);
  EXPECT_TRUE(follower.read().empty());
  int next = 0;
  for (int i = 0; i < 40; ++i) {
    log.write(absl::StrCat("line ", i), kBegin + absl::Seconds(i));
    if (i % 3 != 0) continue;
    for (const LogLine& line : follower.read()) EXPECT_EQ(line.text, absl::StrCat("line ", next++));
    EXPECT_EQ(next, i + 1);
  }
}

TEST_F(LogTest, AFileThatCannotBeWrittenIsCounted) {
  LogFile log(folder_ + "/none/x.log");
  log.write("lost", kBegin);
  EXPECT_EQ(log.lost_lines(), 1);
}

}  // namespace
}  // namespace brigade::launcher
