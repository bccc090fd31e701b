// A program started by a test. Ended by its process id when the object goes; every wait has a
// limit.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace brigade::tests {

class ChildProcess {
 public:
  // argv[0] is the path of the program. Its stdout is read by this object; its stderr goes to
  // `stderr_file`, or nowhere when empty.
  ChildProcess(const std::vector<std::string>& argv, const std::string& stderr_file = "");
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number);

  // The next line of stdout without its newline; nullopt at the end or when none came in time.
  std::optional<std::string> read_line(absl::Duration limit = absl::Seconds(30));
  // Everything to the end of stdout.
  std::string read_all(absl::Duration limit = absl::Seconds(30));

  // Exit code; 128 + number when a signal ended it; nullopt when it still runs after `limit`.
  std::optional<int> wait(absl::Duration limit = absl::Seconds(30));

 private:
  bool fill(absl::Time deadline);  // reads more; false at the end or the deadline

  pid_t pid_ = -1;
  int stdout_ = -1;
  std::string buffered_;
  std::optional<int> exit_code_;
};

// Folder of the programs of this build: where the running test lies.
std::string program_folder();

// The file's text once it is there and not empty; empty after `limit`.
std::string wait_for_file(const std::string& path, absl::Duration limit = absl::Seconds(30));

std::string read_file(const std::string& path);

}  // namespace brigade::tests
