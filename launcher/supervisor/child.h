// One started process: its own session and process group, stdin a pipe that we hold open, stdout
// and stderr one pipe that we read, SIGKILL when the thread that started it ends. Made and used by
// the supervisor's thread, which must live as long as the supervisor. Owns the descriptors.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/supervisor/restart_schedule.h"

namespace brigade::launcher {

class Child {
 public:
  // argv[0] is looked up in PATH. NOT_FOUND or INTERNAL names the program that cannot be started.
  static absl::StatusOr<Child> spawn(const std::vector<std::string>& argv);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // kills its process group and reaps it if that has not happened

  pid_t pid() const { return pid_; }
  // Readable once the process has ended.
  int exit_descriptor() const { return exit_; }
  int output_descriptor() const { return output_; }

  // To the process alone; nothing once it was reaped.
  void signal(int number);
  // SIGKILL to its whole group.
  void kill_group();
  // What a --exit-on-stdin-eof program takes for SIGTERM, also on another host.
  void close_stdin();
  // After exit_descriptor() is readable: kills what is left of its group and says how it ended.
  ProcessEnd reap();

 private:
  Child() = default;
  void swap(Child& other) noexcept;

  pid_t pid_ = -1;  // -1 once reaped
  int stdin_ = -1, output_ = -1, exit_ = -1;
};

}  // namespace brigade::launcher
