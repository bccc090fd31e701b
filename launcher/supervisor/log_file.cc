#include "launcher/supervisor/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {

std::string format_log_time(absl::Time time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone());
}

LogFile::LogFile(std::string path, LogLimits limits) : path_(std::move(path)), limits_(limits) {
  open_file();
}

LogFile::~LogFile() {
  if (file_ >= 0) close(file_);
}

void LogFile::open_file() {
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  struct stat found = {};
  bytes_ = file_ >= 0 && fstat(file_, &found) == 0 ? found.st_size : 0;
}

void LogFile::rotate() {
  if (file_ >= 0) close(file_);
  for (int i = limits_.kept; i > 1; --i) {
    std::rename(absl::StrCat(path_, ".", i - 1).c_str(), absl::StrCat(path_, ".", i).c_str());
  }
  if (limits_.kept > 0) {
    std::rename(path_.c_str(), absl::StrCat(path_, ".1").c_str());
  } else {
    unlink(path_.c_str());
  }
  open_file();
}

void LogFile::write(std::string_view line, absl::Time time) {
  std::string text = format_log_time(time);
  text += ' ';
  text += line;
  text += '\n';
  if (bytes_ > 0 && bytes_ + static_cast<int64_t>(text.size()) > limits_.max_bytes) rotate();
  if (file_ < 0) open_file();
  const ssize_t written = file_ < 0 ? -1 : ::write(file_, text.data(), text.size());
  if (written > 0) bytes_ += written;
  if (written != static_cast<ssize_t>(text.size())) ++lost_lines_;
}

}  // namespace brigade::launcher
