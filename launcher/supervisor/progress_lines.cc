#include "launcher/supervisor/progress_lines.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace brigade::launcher {
namespace {

constexpr const char* kGreen = "\x1b[32m";
constexpr const char* kRed = "\x1b[31m";
constexpr const char* kPlain = "\x1b[0m";
constexpr size_t kUsualWidth = 80;

size_t terminal_width() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return kUsualWidth;
  return size.ws_col;
}

size_t longest_name(const std::vector<ProcessReport>& reports) {
  size_t width = 0;
  for (const ProcessReport& report : reports) width = std::max(width, report.name.size());
  return width;
}

}  // namespace

ProgressLines::ProgressLines(bool color)
    : terminal_(isatty(STDERR_FILENO) == 1), color_(color && terminal_) {}

std::string ProgressLines::text_of(const ProcessReport& report, size_t name_width) const {
  const std::string state = report.state != "running" ? report.state
                            : report.ready            ? "ready"
                                                      : "starting";
  std::string text =
      absl::StrFormat("%-*s  %-11s", static_cast<int>(name_width), report.name, state);
  if (!report.detail.empty()) absl::StrAppend(&text, "  ", report.detail);
  if (terminal_ && report.fraction >= 0) {
    absl::StrAppendFormat(&text, "  %.0f %%", 100 * report.fraction);
  }
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

void ProgressLines::show(const std::vector<ProcessReport>& reports) {
  const size_t name_width = longest_name(reports);
  std::vector<std::string> lines;
  for (const ProcessReport& report : reports) {
    std::string line = text_of(report, name_width);
    if (!terminal_) {
      if (report.state == "waiting" || last_[report.name] == line) continue;
      last_[report.name] = line;
      std::fprintf(stderr, "%s\n", line.c_str());
      continue;
    }
    line.resize(std::min(line.size(), terminal_width() - 1));  // a wrapped line is two
    if (color_ && report.ready) line = absl::StrCat(kGreen, line, kPlain);
    if (color_ && report.state == "failed") line = absl::StrCat(kRed, line, kPlain);
    lines.push_back(std::move(line));
  }
  if (!terminal_ || lines == drawn_) return;
  lines_ = std::move(lines);
  draw();
}

void ProgressLines::draw() {
  wipe();
  for (const std::string& line : lines_) std::fprintf(stderr, "%s\n", line.c_str());
  drawn_ = lines_;
}

void ProgressLines::wipe() {
  if (!drawn_.empty()) std::fprintf(stderr, "\x1b[%zuA\r\x1b[J", drawn_.size());
  drawn_.clear();
}

void ProgressLines::say(const std::string& sentence) {
  wipe();
  std::fprintf(stderr, "%s\n", sentence.c_str());
  if (terminal_) draw();
}

void ProgressLines::finish() {
  drawn_.clear();
  lines_.clear();
}

}  // namespace brigade::launcher
