// "w-0         | " in front of a line of a process, in a color of its own on a terminal.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {

inline constexpr const char* kSupervisorName = "supervisor";

class ProcessPrefix {
 public:
  ProcessPrefix(const std::vector<std::string>& processes, bool color) {
    size_t width = std::string(kSupervisorName).size();
    for (const std::string& name : processes) width = std::max(width, name.size());
    int next = 0;
    for (const std::string& name : processes) add(name, width, color ? 31 + (next++ % 6) : 0);
    add(kSupervisorName, width, 0);
  }

  std::string put_before(const std::string& process, const std::string& line) const {
    const auto prefix = prefixes_.find(process);
    return absl::StrCat(prefix == prefixes_.end() ? process + " | " : prefix->second, line);
  }

 private:
  void add(const std::string& name, size_t width, int color) {
    std::string text = name + std::string(width - name.size(), ' ') + " | ";
    if (color != 0) text = absl::StrCat("\x1b[", color, "m", text, "\x1b[0m");
    prefixes_[name] = text;
  }

  std::map<std::string, std::string> prefixes_;
};

}  // namespace brigade::launcher
