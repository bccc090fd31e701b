// A line on the terminal that shows something is awaited: a spinner with the time, or a bar. Silent
// when stderr is no terminal. show(), clear() and the destructor belong to one thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace brigade::launcher {

class WaitLine {
 public:
  explicit WaitLine(bool enabled);
  ~WaitLine() { clear(); }
  WaitLine(const WaitLine&) = delete;
  WaitLine& operator=(const WaitLine&) = delete;

  // Starts or changes the line. `fraction` in [0, 1] draws a bar; below 0 a spinner.
  void show(const std::string& text, double fraction = -1);
  // Wipes the line and stops drawing; show() starts anew.
  void clear();

 private:
  void draw_until_stopped();

  const bool enabled_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  double fraction_ = -1;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace brigade::launcher
