// One line a process while a cluster starts. On a terminal they are rewritten in place; elsewhere a
// line is printed when it changes. Writes to stderr. One thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launcher/supervisor/supervisor.h"

namespace brigade::launcher {

class ProgressLines {
 public:
  // `color` only has an effect on a terminal.
  explicit ProgressLines(bool color);

  void show(const std::vector<ProcessReport>& reports);
  // A sentence above the lines.
  void say(const std::string& sentence);
  // The lines stay as they are; what follows is printed below.
  void finish();

 private:
  std::string text_of(const ProcessReport& report, size_t name_width) const;
  void draw();
  void wipe();

  const bool terminal_;
  const bool color_;
  std::vector<std::string> drawn_;  // on the terminal now
  std::vector<std::string> lines_;
  std::map<std::string, std::string> last_;  // by process, without a terminal
};

}  // namespace brigade::launcher
