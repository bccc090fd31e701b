// A signal to stop that comes while a program is still opening its model and device, which blocks
// here for good: it is answered at once, by every program.
#include <sys/stat.h>
#include <sys/syscall.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

// One of its threads is inside the system call.
bool opens_a_file(const ChildProcess& program) {
  std::error_code gone;
  const std::string tasks = absl::StrCat("/proc/", program.pid(), "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    const std::string call = read_file(task.path() / "syscall");
    if (absl::StartsWith(call, absl::StrCat(SYS_openat, " "))) return true;
  }
  return false;
}

// Opening an ordinary file takes microseconds: seen at it ten times running, it waits for a writer.
bool blocks(const ChildProcess& program) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  int times = 0;
  while (times < 10 && absl::Now() < deadline) {
    times = opens_a_file(program) ? times + 1 : 0;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return times == 10;
}

TEST(EarlyStopTest, ADeviceThatBlocksHoldsNobodyUp) {
  const TempFolder folder;
  // Nobody ever writes: who opens it to read waits, as the program does that opens its CUDA module.
  const std::string module = folder.path() + "module.so";
  ASSERT_EQ(mkfifo(module.c_str(), 0600), 0);
  const std::string demo = source_dir() + "/models/demo/";
  const std::vector<std::vector<std::string>> programs = {
      {"brigade-coordinator", "--listen", "127.0.0.1:0", "--model", demo + "target"},
      {"brigade-expert-worker", "--join", "127.0.0.1:1", "--model", demo + "target"},
      {"brigade-draft-worker", "--join", "127.0.0.1:1", "--model", demo + "draft"}};
  for (std::vector<std::string> argv : programs) {
    SCOPED_TRACE(argv[0]);
    const std::string log = absl::StrCat(folder.path(), argv[0], ".log");
    argv[0] = absl::StrCat(program_folder(), "/", argv[0]);
    argv.insert(argv.end(), {"--device", "cuda:0", "--cuda-module", module});
    ChildProcess program(argv, log);
    ASSERT_TRUE(blocks(program)) << read_file(log);
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(absl::Seconds(20)), 0) << read_file(log);
  }
}

}  // namespace
}  // namespace brigade::tests
