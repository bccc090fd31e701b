// The argument CLUSTER of down, ps, logs and restart: a name, a cluster file, or nothing when one
// cluster is up.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace brigade::launcher {

struct ClusterLocation {
  std::string name;
  std::string folder;  // of its state
};

// INVALID_ARGUMENT when a file is refused, or when nothing is named and several are up; UNAVAILABLE
// when nothing is named and none is.
absl::StatusOr<ClusterLocation> locate_cluster(const std::string& argument);

// UNAVAILABLE unless a supervisor runs there.
absl::Status require_supervisor(const ClusterLocation& cluster);

}  // namespace brigade::launcher
