// A signal to stop that comes while a program is still opening its model, which blocks here for good: it
// is answered at once, by every program.
#include <sys/stat.h>

#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"

namespace brigade::tests {
namespace {

TEST(EarlyStopTest, AModelThatBlocksHoldsNobodyUp) {
  const TempFolder folder;
  // Nobody ever writes: who opens it to read waits.
  ASSERT_EQ(mkfifo((folder.path() + "config.json").c_str(), 0600), 0);
  const std::vector<std::vector<std::string>> programs = {
      {"brigade-coordinator", "--listen", "127.0.0.1:0"},
      {"brigade-expert-worker", "--join", "127.0.0.1:1"},
      {"brigade-draft-worker", "--join", "127.0.0.1:1"}};
  for (std::vector<std::string> argv : programs) {
    SCOPED_TRACE(argv[0]);
    const std::string log = absl::StrCat(folder.path(), argv[0], ".log");
    argv[0] = absl::StrCat(program_folder(), "/", argv[0]);
    argv.insert(argv.end(), {"--model", folder.path()});
    ChildProcess program(argv, log);
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (!absl::StrContains(read_file(log), "settings") && absl::Now() < deadline)
      absl::SleepFor(absl::Milliseconds(2));
    EXPECT_FALSE(program.wait(absl::ZeroDuration()).has_value()) << read_file(log);
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(absl::Seconds(20)), 0) << read_file(log);
  }
}

}  // namespace
}  // namespace brigade::tests
