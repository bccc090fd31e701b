// Prints lines to stdout in its own thread, so that a reader that stops reading never stops the
// supervisor. The queue holds 4096 lines; what comes while it is full is dropped and counted in a
// line. print() from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace brigade::launcher {

class LinePrinter {
 public:
  LinePrinter();
  // Waits up to a second for the reader, then leaves what is not printed.
  ~LinePrinter();
  LinePrinter(const LinePrinter&) = delete;
  LinePrinter& operator=(const LinePrinter&) = delete;

  void print(std::string line);

 private:
  void print_until_stopped();
  bool write_all(const std::string& text);  // false once stopping, or when the reader is gone

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
  int64_t dropped_ = 0;
  bool stopping_ = false;
  absl::Time stop_deadline_ = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace brigade::launcher
