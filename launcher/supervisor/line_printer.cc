#include "launcher/supervisor/line_printer.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace brigade::launcher {
namespace {

constexpr size_t kMaxLines = 4096;
constexpr size_t kMaxWrite = 512;  // a pipe that is writable takes so much at once (PIPE_BUF)
constexpr int kPollMs = 100;
constexpr absl::Duration kLastWords = absl::Seconds(1);

}  // namespace

LinePrinter::LinePrinter() : thread_([this] { print_until_stopped(); }) {}

LinePrinter::~LinePrinter() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_deadline_ = absl::Now() + kLastWords;
  }
  changed_.notify_all();
  thread_.join();
}

void LinePrinter::print(std::string line) {
  {
    std::lock_guard lock(mutex_);
    if (lines_.size() >= kMaxLines) {
      ++dropped_;
      return;
    }
    lines_.push_back(std::move(line));
  }
  changed_.notify_one();
}

void LinePrinter::print_until_stopped() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !lines_.empty(); });
    if (lines_.empty()) return;
    std::string text;
    for (std::string& line : std::exchange(lines_, {})) absl::StrAppend(&text, line, "\n");
    const int64_t dropped = std::exchange(dropped_, 0);
    if (dropped > 0) absl::StrAppend(&text, "(", dropped, " lines left out: see brigade logs)\n");
    lock.unlock();
    const bool written = write_all(text);
    lock.lock();
    if (!written && stopping_) return;
  }
}

bool LinePrinter::write_all(const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    pollfd waiting = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    const int ready = poll(&waiting, 1, kPollMs);
    if (ready == 0 || (ready < 0 && errno == EINTR)) {
      std::lock_guard lock(mutex_);
      if (absl::Now() >= stop_deadline_) return false;
      continue;
    }
    const ssize_t count =
        write(STDOUT_FILENO, text.data() + done, std::min(kMaxWrite, text.size() - done));
    if (count < 0 && errno != EINTR && errno != EAGAIN) return false;
    if (count > 0) done += static_cast<size_t>(count);
  }
  return true;
}

}  // namespace brigade::launcher
