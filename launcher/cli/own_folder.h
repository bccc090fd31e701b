// Where this program lies: its siblings are found there.
#pragma once

#include <unistd.h>

#include <climits>
#include <string>

namespace brigade::launcher {

inline std::string own_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0) return ".";
  const std::string full(path, static_cast<size_t>(length));
  return full.substr(0, full.rfind('/'));
}

}  // namespace brigade::launcher
