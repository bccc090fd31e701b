// A folder with a cluster file whose programs are stub_process, and `brigade` running on it. Ends
// what it started by process id when it goes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"

namespace brigade::tests {

// Launch keys of a cluster whose processes may end.
inline constexpr char kQuickRestarts[] =
    "  restart:\n    first_delay: 20ms\n    longest_delay: 100ms\n    max_restarts: 3\n";

// Of a process that `ps` lists.
inline bool is_ready(const nlohmann::json& process) { return process["ready"] == true; }

class StubCluster {
 public:
  // `workers` workers w-0, w-1, ...; further keys of the launch section, indented by two spaces.
  explicit StubCluster(int workers = 2, const std::string& launch_keys = "");
  ~StubCluster();

  // Another cluster file, whose paths start at folder().
  void write_file(const std::string& yaml) const;

  const std::string& folder() const { return folder_; }
  const std::string& file() const { return file_; }
  std::string state() const { return folder_ + "/state"; }

  // What NAME does at each start, or at the next one only.
  void tell(const std::string& name, const std::string& text) const;
  void tell_once(const std::string& name, const std::string& text) const;

  std::unique_ptr<ChildProcess> brigade(std::vector<std::string> arguments) const;
  // `up`, with its stderr in stderr_text().
  std::unique_ptr<ChildProcess> up(std::vector<std::string> more = {});
  // Runs it to its end; its output in *output.
  int run(const std::vector<std::string>& arguments, std::string* output = nullptr) const;
  std::string stderr_text() const;

  // Lines of `up` until one holds `text`; "" when none came.
  std::string line_with(ChildProcess& up, const std::string& text) const;

  nlohmann::json ps() const;
  nlohmann::json process(const std::string& name) const;
  // Asks ps until `wanted` holds for the process; false after 30 s.
  bool wait_for(const std::string& name,
                const std::function<bool(const nlohmann::json&)>& wanted) const;

  std::vector<std::string> events() const;
  // Index of the first event that begins so; -1: none.
  int event(const std::string& begin) const;
  bool wait_for_event(const std::string& begin) const;  // up to 30 s
  // Pids of all processes that ever started.
  std::vector<pid_t> started() const;
  // True once none of them runs; waits up to 30 s.
  bool all_gone() const;

 private:
  std::string folder_, file_, errors_;
};

}  // namespace brigade::tests
