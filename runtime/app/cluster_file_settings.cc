#include "runtime/app/cluster_file_settings.h"

#include "cluster_file/cluster_layout.h"

namespace brigade::runtime {
namespace {

void apply_door(const v1::ClusterFile& file, CoordinatorConfig* config) {
  const v1::CoordinatorRole& role = file.coordinator();
  const v1::Security& security = file.security();
  DoorOptions& door = config->door;
  door.listen = cluster_file::with_port(role.listen_address(), role.port());
  door.tls_cert = security.tls().cert();
  door.tls_key = security.tls().key();
  door.client_ca = security.tls().client_ca();
  door.token_file = security.tokens().client();
  door.operator_token_file = security.tokens().operator_();
  door.draft_token_file = security.tokens().draft();
  door.insecure = security.insecure();
  config->metrics_listen = cluster_file::with_port("127.0.0.1", role.metrics_port());
}

void apply_workers(const v1::ClusterFile& file, ClusterConfig* cluster) {
  const v1::CoordinatorRole& role = file.coordinator();
  cluster->workers = static_cast<int>(cluster_file::expanded_workers(file).size());
  cluster->drafts = !file.drafts().empty();
  cluster->control_listen = cluster_file::with_port(role.listen_address(), role.control_port());
  cluster->worker_token_file = file.security().tokens().worker();
  cluster->trusted_network = file.security().data_plane() == v1::DATA_PLANE_TRUSTED_NETWORK;
  cluster->data_interface = cluster_file::find_host(file, role.host())->data_interface();
  cluster->data_plane = role.data_plane();
  cluster->microbatches = static_cast<int>(role.microbatches());
  cluster->wire_dtype = file.numerics().wire_dtype();
  cluster->join_deadline = cluster_file::to_duration(file.placement().join_deadline());
  cluster->heartbeat = cluster_file::to_duration(file.timeouts().heartbeat());
  cluster->lost_after = cluster_file::to_duration(file.timeouts().lost_after());
  cluster->reply_deadline = cluster_file::to_duration(file.timeouts().reply_deadline());
}

}  // namespace

void apply_cluster_file(const v1::ClusterFile& file, CoordinatorConfig* config) {
  const v1::CoordinatorRole& role = file.coordinator();
  config->model = file.model().path();
  config->name = file.model().name();
  config->max_context = static_cast<int>(file.model().max_context());
  config->kv_dtype = file.numerics().kv_dtype();
  config->device.name = role.device();
  if (is_gpu(config->device)) {
    config->device.gpu_math = file.numerics().gpu_math();
    config->device.gpu_graphs = role.gpu_graphs();
    config->device.cuda_module = cluster_file::find_host(file, role.host())->cuda_module();
  }
  config->threads = static_cast<int>(role.threads());
  config->kv_memory_bytes = role.kv_memory_bytes();
  config->token_budget = static_cast<int>(role.token_budget());
  config->engine.max_running_sequences = static_cast<int>(role.max_sequences());
  config->grace = cluster_file::to_duration(file.timeouts().grace());
  apply_door(file, config);
  apply_workers(file, &config->cluster);
}

}  // namespace brigade::runtime
