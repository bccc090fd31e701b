// Tokens, keys and certificates as files. Pure function of the file system.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace brigade::runtime {

// The first MiB. INVALID_ARGUMENT, naming `flag` and the file, when it cannot be read or is empty.
absl::StatusOr<std::string> read_secret_file(const std::string& path, const std::string& flag);

}  // namespace brigade::runtime
