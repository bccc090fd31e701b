#include "runtime/worker/cluster_file_settings.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
  if (config.name.empty())
    return absl::InvalidArgumentError("--cluster needs --name: which of its workers this is");
  return absl::InvalidArgumentError(absl::StrCat(
      "--name ", config.name, ": ", config.cluster_file, " has no such worker; it has ",
      names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

}  // namespace

absl::Status apply_cluster_file(WorkerConfig* config) {
  ASSIGN_OR_RETURN(const cluster_file::Reading reading,
                   cluster_file::read_cluster_file(config->cluster_file));
  const v1::ClusterFile& file = reading.file;
  ASSIGN_OR_RETURN(const WorkerProcess process, find_worker(file, *config));
  const v1::Security& security = file.security();
  config->model = file.model().path();
  config->dial = {.address = cluster_file::control_address(file),
                  .ca = security.tls().ca(),
                  .tls_cert = security.tls().peer_cert(),
                  .tls_key = security.tls().peer_key(),
                  .token_file = security.tokens().worker()};
  config->insecure = security.insecure();
  config->trusted_network = security.data_plane() == v1::DATA_PLANE_TRUSTED_NETWORK;
  if (const v1::Host* host = cluster_file::find_host(file, process.host))
    config->data_interface = host->data_interface();
  config->device.name = process.device;
  if (is_gpu(config->device)) config->device.gpu_math = file.numerics().gpu_math();
  config->threads = static_cast<int>(process.threads);
  config->memory_bytes = process.memory_bytes;
  config->wire_dtype = file.numerics().wire_dtype();
  config->kv_dtype = file.numerics().kv_dtype();
  config->rejoin_timeout = cluster_file::to_duration(file.timeouts().rejoin());
  config->grace = cluster_file::to_duration(file.timeouts().grace());
  return absl::OkStatus();
}

}  // namespace brigade::runtime::worker
