// The cluster as `brigade status` shows it: workers with their rows, and which experts live where.
// Pure function.
#pragma once

#include <string>

#include "brigade/v1/generation.pb.h"

namespace brigade::launcher {

std::string cluster_table(const v1::Cluster& cluster);

}  // namespace brigade::launcher
