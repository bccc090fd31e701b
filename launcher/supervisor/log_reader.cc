#include "launcher/supervisor/log_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/supervisor/log_file.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

constexpr size_t kChunk = 256 << 10;
constexpr int kMaxChunks = 8;  // of one log in one read()

LogLine parse_line(const std::string& process, const std::string& line) {
  if (line.size() <= kLogTimeLength) return {line, process, ""};
  return {line.substr(0, kLogTimeLength), process, line.substr(kLogTimeLength + 1)};
}

void sort_by_time(std::vector<LogLine>* lines) {
  std::stable_sort(lines->begin(), lines->end(),
                   [](const LogLine& a, const LogLine& b) { return a.time < b.time; });
}

}  // namespace

std::vector<LogLine> last_lines(const std::string& folder, const std::string& process, int count) {
  const std::string path = log_path(folder, process);
  std::deque<std::string> lines;
  for (int i = LogLimits().kept; i >= 0; --i) {
    std::ifstream file(i > 0 ? absl::StrCat(path, ".", i) : path);
    for (std::string line; std::getline(file, line);) {
      lines.push_back(std::move(line));
      if (static_cast<int>(lines.size()) > count) lines.pop_front();
    }
  }
  std::vector<LogLine> parsed;
  for (const std::string& line : lines) parsed.push_back(parse_line(process, line));
  return parsed;
}

std::vector<LogLine> last_lines(const std::string& folder,
                                const std::vector<std::string>& processes, int count) {
  std::vector<LogLine> all;
  for (const std::string& process : processes) {
    std::vector<LogLine> lines = last_lines(folder, process, count);
    all.insert(all.end(), lines.begin(), lines.end());
  }
  sort_by_time(&all);
  if (static_cast<int>(all.size()) > count) all.erase(all.begin(), all.end() - count);
  return all;
}

struct LogFollower::Log {
  std::string path, process, partial;
  int file = -1;

  ~Log() {
    if (file >= 0) close(file);
  }

  // True when the name means another file by now.
  bool was_rotated() const {
    struct stat mine = {}, now = {};
    return file < 0 || (fstat(file, &mine) == 0 && stat(path.c_str(), &now) == 0 &&
                        (mine.st_ino != now.st_ino || mine.st_dev != now.st_dev));
  }

  void reopen() {
    if (file >= 0) close(file);
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }

  bool read_chunk(std::vector<LogLine>* lines) {
    std::string bytes(kChunk, '\0');
    const ssize_t count = file < 0 ? 0 : ::read(file, bytes.data(), bytes.size());
    if (count <= 0) return false;
    partial.append(bytes, 0, static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end; (end = partial.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines->push_back(parse_line(process, partial.substr(begin, end - begin)));
    }
    partial.erase(0, begin);
    return true;
  }
};

LogFollower::LogFollower(const std::string& folder, const std::vector<std::string>& processes,
                         bool from_beginning) {
  for (const std::string& process : processes) {
    auto log = std::make_unique<Log>();
    log->path = log_path(folder, process);
    log->process = process;
    log->reopen();
    if (!from_beginning && log->file >= 0) lseek(log->file, 0, SEEK_END);
    logs_.push_back(std::move(log));
  }
}

LogFollower::~LogFollower() = default;

std::vector<LogLine> LogFollower::read() {
  std::vector<LogLine> lines;
  for (const auto& log : logs_) {
    for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
      const bool rotated = log->was_rotated();  // asked before the last read of the old file
      if (log->read_chunk(&lines)) continue;
      if (!rotated) break;
      log->reopen();
    }
  }
  sort_by_time(&lines);
  return lines;
}

}  // namespace brigade::launcher
