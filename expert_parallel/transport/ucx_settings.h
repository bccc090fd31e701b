// What UCX is told at start, as its own names and values; by measurement, not by its defaults.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "expert_parallel/transport/ucx_transport.h"

namespace brigade::expert_parallel {

std::vector<std::pair<std::string, std::string>> ucx_settings(const UcxOptions& options);

}  // namespace brigade::expert_parallel
