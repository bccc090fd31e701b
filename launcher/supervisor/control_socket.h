// The path of a socket in a folder, however long the folder's own path is (sockets allow 107
// bytes).
#pragma once

#include <string>

namespace brigade::launcher {

// Opens the folder; path() names the socket through it for as long as this object lives.
class ControlSocketPath {
 public:
  explicit ControlSocketPath(const std::string& folder);
  ~ControlSocketPath();
  ControlSocketPath(const ControlSocketPath&) = delete;
  ControlSocketPath& operator=(const ControlSocketPath&) = delete;

  const std::string& path() const { return path_; }

 private:
  int folder_ = -1;
  std::string path_;
};

}  // namespace brigade::launcher
