// The log of one process: a line with the time it arrived in front, bounded by rotation (NAME.log,
// NAME.log.1, NAME.log.2). One thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace brigade::launcher {

struct LogLimits {
  int64_t max_bytes = 16 << 20;  // of one file
  int kept = 2;                  // old files
};

// "2026-11-30T07:50:12.123456Z " in front of each line: lines of several logs merge by comparing.
inline constexpr size_t kLogTimeLength = 27;
std::string format_log_time(absl::Time time);

class LogFile {
 public:
  explicit LogFile(std::string path, LogLimits limits = {});
  ~LogFile();
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // Appends one line (without newline). A line that cannot be written is counted, never waited for.
  void write(std::string_view line, absl::Time time);

  int64_t lost_lines() const { return lost_lines_; }

 private:
  void open_file();
  void rotate();

  const std::string path_;
  const LogLimits limits_;
  int file_ = -1;
  int64_t bytes_ = 0;
  int64_t lost_lines_ = 0;
};

}  // namespace brigade::launcher
