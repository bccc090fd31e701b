// Reads the logs that LogFile writes: the last lines of several, merged by the time they arrived,
// and then what is added, over rotations. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace brigade::launcher {

struct LogLine {
  std::string time;  // as format_log_time
  std::string process;
  std::string text;
};

// The last `count` lines of one process's log and its older files, oldest first.
std::vector<LogLine> last_lines(const std::string& folder, const std::string& process, int count);

// Of several processes: the last `count` over all, in the order they arrived.
std::vector<LogLine> last_lines(const std::string& folder,
                                const std::vector<std::string>& processes, int count);

class LogFollower {
 public:
  // From the end of each log, or from its beginning. New processes' logs are not taken up.
  LogFollower(const std::string& folder, const std::vector<std::string>& processes,
              bool from_beginning);
  ~LogFollower();

  // What was added since the last call, merged; at most a few MiB a call.
  std::vector<LogLine> read();

 private:
  struct Log;
  std::vector<std::unique_ptr<Log>> logs_;
};

}  // namespace brigade::launcher
