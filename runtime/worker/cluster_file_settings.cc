#include "runtime/worker/cluster_file_settings.h"

#include <vector>

#include "cluster_file/cluster_layout.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/status.h"

namespace brigade::runtime::worker {
namespace {

using cluster_file::WorkerProcess;

absl::StatusOr<WorkerProcess> find_worker(const v1::ClusterFile& file, const WorkerConfig& config) {
  std::vector<std::string> names;
  for (const WorkerProcess& process : cluster_file::expanded_workers(file)) {
    if (process.name == config.name) return process;
    names.push_back(process.name);
  }
  return no_such_name(config, "worker", names);
}

}  // namespace

absl::Status apply_cluster_file(WorkerConfig* config) {
  ASSIGN_OR_RETURN(const cluster_file::Reading reading,
                   cluster_file::read_cluster_file(config->cluster_file));
  const v1::ClusterFile& file = reading.file;
  ASSIGN_OR_RETURN(const WorkerProcess process, find_worker(file, *config));
  config->model = file.model().path();
  config->trusted_network = file.security().data_plane() == v1::DATA_PLANE_TRUSTED_NETWORK;
  config->data_interface = cluster_file::find_host(file, process.host)->data_interface();
  config->data_plane = process.data_plane;
  config->device.name = process.device;
  config->threads = static_cast<int>(process.threads);
  config->memory_bytes = process.memory_bytes;
  config->wire_dtype = file.numerics().wire_dtype();
  config->kv_dtype = file.numerics().kv_dtype();
  config->grace = cluster_file::to_duration(file.timeouts().grace());
  take_cluster_file(file, process.host, file.security().tokens().worker(), config);
  return absl::OkStatus();
}

}  // namespace brigade::runtime::worker
