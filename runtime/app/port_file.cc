#include "runtime/app/port_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

absl::Status write_port_file(const std::string& path, int port, const char* flag) {
  if (path.empty()) return absl::OkStatus();
  const std::string temporary = absl::StrCat(path, ".", getpid());
  std::ofstream file(temporary);
  file << port << "\n";
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot write ", path));
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
