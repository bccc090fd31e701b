// Tells scripts which port was chosen. Pure function of its arguments and the file system.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace brigade::runtime {

// Writes "PORT\n" so that a reader sees all or nothing. Nothing to do for an empty path.
// INVALID_ARGUMENT names `flag` and the path when it cannot be written.
absl::Status write_port_file(const std::string& path, int port, const char* flag);

}  // namespace brigade::runtime
