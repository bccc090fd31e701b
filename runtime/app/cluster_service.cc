#include "runtime/app/cluster_service.h"

#include <net/if.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/build_version.h"
#include "kernels/core/status.h"
#include "kernels/ops/numerics_probe.h"
#include "runtime/api/server_credentials.h"
#include "runtime/app/coordinator_experts.h"
#include "runtime/app/dtype_flag.h"
#include "runtime/app/port_file.h"
#include "runtime/cluster/cluster_host.h"
#include "runtime/cluster/control_server.h"
#include "runtime/device/data_plane_choice.h"
#include "runtime/model/model_fingerprint.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

// Slots beside the expected workers, for more of them and for such that come under new names.
constexpr int kSpareRanks = 8;
constexpr absl::Duration kDismissal = absl::Seconds(3);

absl::StatusOr<ServingIdentity> identity_of(const CoordinatorConfig& config,
                                            const OpenedModel& model, kernels::Device& device) {
  ServingIdentity identity;
  identity.build_version = kBuildVersion;
  ASSIGN_OR_RETURN(identity.model_fingerprint, model_fingerprint(*model.checkpoint));
  ASSIGN_OR_RETURN(const kernels::DType wire,
                   parse_dtype(config.cluster.wire_dtype, "--wire-dtype"));
  ASSIGN_OR_RETURN(const kernels::DType kv, parse_dtype(config.kv_dtype, "--kv-dtype"));
  ASSIGN_OR_RETURN(const kernels::Numerics numerics, kernels::numerics_of(device, wire, kv));
  identity.numerics_id = numerics.id;
  identity.numerics_text = numerics.text;
  return identity;
}

absl::StatusOr<ClusterSettings> settings_of(const CoordinatorConfig& config,
                                            const OpenedModel& model, kernels::Device& device) {
  const ClusterConfig& cluster = config.cluster;
  ClusterSettings settings;
  ASSIGN_OR_RETURN(const kernels::DType wire, parse_dtype(cluster.wire_dtype, "--wire-dtype"));
  ASSIGN_OR_RETURN(settings.geometry, expert_geometry(model.spec, model.tensors, wire));
  if (settings.geometry.moe_layers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--workers ", cluster.workers, ": the model has no experts"));
  }
  ASSIGN_OR_RETURN(settings.identity, identity_of(config, model, device));
  ASSIGN_OR_RETURN(const DrawnSession drawn, draw_session());
  settings.session = drawn.session;
  settings.incarnation = drawn.incarnation;
  settings.expected_workers = cluster.workers;
  settings.max_ranks = cluster.workers + kSpareRanks;
  settings.microbatches = cluster.microbatches;
  settings.max_rows = config.token_budget;
  settings.heartbeat = cluster.heartbeat;
  settings.lost_after = cluster.lost_after;
  settings.reply_deadline = cluster.reply_deadline;
  settings.join_deadline = cluster.join_deadline;
  settings.log = [](const std::string& line) { spdlog::info("{}", line); };
  return settings;
}

absl::StatusOr<std::unique_ptr<expert_parallel::Transport>> make_transport(
    const CoordinatorConfig& config, kernels::Device& device, const std::string& plane) {
  const ClusterConfig& cluster = config.cluster;
  ASSIGN_OR_RETURN(const bool loopback, is_loopback(cluster.control_listen, "--control-listen"));
  if (!loopback && !cluster.trusted_network && !config.door.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--control-listen ", cluster.control_listen,
                     " is not a loopback address: activations would cross the network, which "
                     "are authenticated but not encrypted; say --trusted-network if it is one"));
  }
  // Names of RDMA devices have a colon and are UCX's to check.
  const std::string& interface = cluster.data_interface;
  if (!interface.empty() && interface.find_first_of(":,") == std::string::npos &&
      if_nametoindex(interface.c_str()) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-interface ", interface, ": this host has no such network device"));
  }
  return make_data_plane(plane, device, config.device,
                         {.net_devices = !interface.empty() ? interface : loopback ? "lo" : "",
                          .coordinator = true});
}

}  // namespace

// Destroyed in reverse order: no stream outlives the host, no host its home.
struct ClusterService::Parts {
  Parts(const ClusterSettings& settings, std::unique_ptr<expert_parallel::Transport> transport,
        const OpenedModel& model, kernels::Device& device)
      : device(device), experts(model), host(settings, std::move(transport), experts) {}
  kernels::Device& device;
  CoordinatorExperts experts;
  ClusterHost host;
  std::unique_ptr<ControlServer> server;
  bool stopped = false;
};

ClusterService::ClusterService(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

ClusterService::~ClusterService() { stop(); }

absl::StatusOr<std::unique_ptr<ClusterService>> ClusterService::open(
    const CoordinatorConfig& config, const OpenedModel& model, kernels::Device& device,
    grpc::Service* drafts) {
  ASSIGN_OR_RETURN(const std::vector<std::string> planes,
                   data_planes(config.cluster.data_plane, config.device));
  ASSIGN_OR_RETURN(auto transport, make_transport(config, device, planes[0]));
  ASSIGN_OR_RETURN(ClusterSettings settings, settings_of(config, model, device));
  settings.data_plane = planes[0];
  if (transport->caps().device_memory) settings.frames_on = &device;
  auto parts = std::make_unique<Parts>(settings, std::move(transport), model, device);
  ClusterHost& host = parts->host;
  parts->experts.start([&host](std::vector<ExpertKey> keys, const absl::Status& status) {
    host.local_loaded(std::move(keys), status);
  });
  host.start();
  // From here on the parts end in order.
  auto service = std::unique_ptr<ClusterService>(new ClusterService(std::move(parts)));
  ASSIGN_OR_RETURN(service->parts_->server,
                   ControlServer::start(control_door(config), host, drafts));
  const ControlServer& server = *service->parts_->server;
  host.set_control_address(server.address());
  spdlog::info("workers join at {}; data plane {}; {}", server.address(), describe_planes(planes),
               settings.identity.numerics_text);
  RETURN_IF_ERROR(
      write_port_file(config.cluster.control_port_file, server.port(), "--control-port-file"));
  return service;
}

ExchangeFactory ClusterService::exchange_factory() {
  return
      [&host = parts_->host](kernels::Device& device, const expert_parallel::ExpertShard& shard,
                             int max_rows) { return host.make_exchange(device, shard, max_rows); };
}

void ClusterService::sleep_until(kernels::Waker& waker, absl::Time until) {
  parts_->host.sleep_until(waker, until);
}

void ClusterService::use(expert_parallel::ExpertShard& shard) {
  parts_->experts.use(parts_->device, shard);
}

std::string ClusterService::not_ready_reason() const { return parts_->host.not_ready_reason(); }

ClusterStatus ClusterService::status() const { return parts_->host.status(); }

void ClusterService::dismiss_workers() {
  if (parts_->server == nullptr) return;
  parts_->host.dismiss_workers("the coordinator is stopping", absl::Now() + kDismissal);
  parts_->server->stop();
  parts_->server = nullptr;
}

void ClusterService::stop() {
  if (std::exchange(parts_->stopped, true)) return;
  dismiss_workers();
  parts_->experts.stop();
  parts_->host.stop();
}

}  // namespace brigade::runtime
