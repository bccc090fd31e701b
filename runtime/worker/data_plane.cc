#include "runtime/worker/data_plane.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "expert_parallel/routing/placement.h"
#include "kernels/core/status.h"

namespace brigade::runtime::worker {
namespace {

using expert_parallel::ExpertServer;

// For a turn of the server's thread. A batch may be under way: its own bound is longer, but whoever
// computes that long has lost its coordinator.
constexpr absl::Duration kTurn = absl::Seconds(20);

absl::Time deadline() { return absl::Now() + kTurn; }

}  // namespace

DataPlane::DataPlane(kernels::Device& device, expert_parallel::ExpertShard& shard,
                     TransportFactory make_transport, LinkLost on_lost,
                     DeviceFailed on_device_failed)
    : device_(device),
      shard_(shard),
      make_transport_(std::move(make_transport)),
      on_lost_(std::move(on_lost)),
      on_device_failed_(std::move(on_device_failed)) {}

DataPlane::~DataPlane() = default;

std::shared_ptr<ExpertServer> DataPlane::server() const {
  std::lock_guard<std::mutex> lock(pointer_mutex_);
  return server_;
}

// Another bound of rows needs other buffers, another plane another transport.
absl::Status DataPlane::ensure_server(int max_rows, const std::string& plane) {
  if (server_ != nullptr && max_rows_ == max_rows && plane_ == plane) return absl::OkStatus();
  {
    std::lock_guard<std::mutex> lock(pointer_mutex_);
    server_.reset();
  }
  const expert_parallel::ExpertGeometry& geometry = shard_.geometry();
  ASSIGN_OR_RETURN(auto transport, make_transport_(plane));
  ASSIGN_OR_RETURN(std::shared_ptr<ExpertServer> made,
                   ExpertServer::create(
                       std::move(transport), device_, shard_,
                       {.limits = {.hidden = geometry.hidden,
                                   .experts = geometry.experts,
                                   .moe_layers = geometry.moe_layers,
                                   .max_slots = max_rows * geometry.top_k,
                                   .answer_dtype = geometry.wire_dtype},
                        .on_device_failed = on_device_failed_},
                       [this](uint64_t, const absl::Status& why) { on_lost_(incarnation_, why); }));
  made->start();
  max_rows_ = max_rows;
  plane_ = plane;
  std::lock_guard<std::mutex> lock(pointer_mutex_);
  server_ = std::move(made);
  return absl::OkStatus();
}

absl::StatusOr<std::string> DataPlane::open(const Registered& terms, uint64_t incarnation) {
  std::lock_guard<std::mutex> lock(change_mutex_);
  RETURN_IF_ERROR(ensure_server(terms.max_rows, terms.data_plane));
  const expert_parallel::Session session{.coordinator_id = terms.coordinator_id,
                                         .secret = terms.session_secret};
  ASSIGN_OR_RETURN(
      std::string address,
      server_->open(session, {expert_parallel::kCoordinator, terms.coordinator_incarnation},
                    {terms.rank, incarnation}, deadline()));
  coordinator_id_ = terms.coordinator_id;
  // Not connected yet, so no loss of this link can have been reported under the one before.
  RETURN_IF_ERROR(server_->call([&] { incarnation_ = incarnation; }, deadline()));
  const absl::Status connected =
      server_->connect(terms.coordinator_id, terms.data_address, deadline());
  // A transport knows the network devices that were up when it was made: the next attempt makes a
  // new one.
  if (!connected.ok()) max_rows_ = 0;
  RETURN_IF_ERROR(connected);
  return address;
}

void DataPlane::close() {
  std::lock_guard<std::mutex> lock(change_mutex_);
  if (server_ != nullptr) (void)server_->close(coordinator_id_, deadline());
}

absl::Status DataPlane::change(std::function<void()> change) {
  std::lock_guard<std::mutex> lock(change_mutex_);
  if (server_ != nullptr) return server_->call(std::move(change), deadline());
  change();
  return absl::OkStatus();
}

void DataPlane::count(WorkerHeartbeat* heartbeat) const {
  heartbeat->resident_bytes = static_cast<int64_t>(shard_.resident_bytes());
  heartbeat->reserved_bytes = static_cast<int64_t>(shard_.reserved_bytes());
  const std::shared_ptr<ExpertServer> server = this->server();
  if (server == nullptr) return;
  const expert_parallel::ExpertServerCounters& counters = server->counters();
  heartbeat->frames = static_cast<int64_t>(counters.frames);
  heartbeat->rows = static_cast<int64_t>(counters.rows);
  heartbeat->terms = static_cast<int64_t>(counters.terms);
  heartbeat->declined_terms = static_cast<int64_t>(counters.declined_terms);
  heartbeat->refused_frames = static_cast<int64_t>(server->refusals().total());
}

}  // namespace brigade::runtime::worker
