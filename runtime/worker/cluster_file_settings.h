// A worker's settings from the cluster file.
#pragma once

#include "absl/status/status.h"
#include "runtime/worker/worker_config.h"

namespace brigade::runtime::worker {

// Reads config->cluster_file and fills what it says about the worker config->name.
// INVALID_ARGUMENT: the faults of the file, one a line, or --name that it does not have.
absl::Status apply_cluster_file(WorkerConfig* config);

}  // namespace brigade::runtime::worker
