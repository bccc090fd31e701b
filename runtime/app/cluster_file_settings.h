// A coordinator's settings from the cluster file. Pure function.
#pragma once

#include "brigade/v1/cluster_file.pb.h"
#include "runtime/app/config.h"

namespace brigade::runtime {

// Sets what the file says. It has passed cluster_file::read_cluster_file().
void apply_cluster_file(const v1::ClusterFile& file, CoordinatorConfig* config);

}  // namespace brigade::runtime
