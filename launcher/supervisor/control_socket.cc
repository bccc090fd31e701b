#include "launcher/supervisor/control_socket.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace brigade::launcher {

ControlSocketPath::ControlSocketPath(const std::string& folder)
    : folder_(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
      path_(absl::StrCat("/proc/self/fd/", folder_, "/control")) {}

ControlSocketPath::~ControlSocketPath() {
  if (folder_ >= 0) close(folder_);
}

}  // namespace brigade::launcher
