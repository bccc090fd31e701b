#include "tests/support/engine_cluster.h"

#include <utility>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/cluster_exchange.h"
#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/cluster/viewed_exchange.h"
#include "runtime/model/weights.h"

namespace brigade::tests {

using namespace expert_parallel;

namespace {

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

template <typename T>
T value_of(absl::StatusOr<T> result) {
  EXPECT_TRUE(result.ok()) << result.status();
  CHECK(result.ok());
  return *std::move(result);
}

void expect_ok(const absl::Status& status) {
  EXPECT_TRUE(status.ok()) << status;
  CHECK(status.ok());
}

}  // namespace

// A coordinator's exchange, whose counters can be read while it lives.
class EngineCluster::CountedExchange final : public expert_parallel::Exchange {
 public:
  CountedExchange(EngineCluster& cluster, std::unique_ptr<ClusterExchange> exchange)
      : cluster_(cluster),
        counters_(exchange->counters()),
        viewed_(cluster.board_, std::move(exchange)) {
    std::lock_guard lock(cluster_.mutex_);
    cluster_.exchanges_.push_back(this);
  }
  ~CountedExchange() override {
    std::lock_guard lock(cluster_.mutex_);
    std::erase(cluster_.exchanges_, this);
  }
  absl::Status begin(kernels::Stream& stream, const LayerRows& layer,
                     kernels::Waker* waker) override {
    return viewed_.begin(stream, layer, waker);
  }
  absl::StatusOr<bool> poll() override { return viewed_.poll(); }
  const void* answers() const override { return viewed_.answers(); }
  kernels::DType answer_dtype() const override { return viewed_.answer_dtype(); }
  std::span<const int32_t> parked_rows() const override { return viewed_.parked_rows(); }
  uint64_t view_version() const override { return viewed_.view_version(); }
  const ExchangeCounters& counters() const { return counters_; }

 private:
  EngineCluster& cluster_;
  const ExchangeCounters& counters_;
  runtime::ViewedExchange viewed_;
};

EngineCluster::EngineCluster(const EngineClusterOptions& options)
    : options_(options),
      model_(value_of(runtime::open_model(options.checkpoint))),
      reader_(std::make_unique<runtime::ExpertReader>(model_.tensors)),
      geometry_(
          value_of(runtime::expert_geometry(model_.spec, model_.tensors, options.wire_dtype))),
      session_{.coordinator_id = 42, .secret = {9, 8, 7, 6, 5, 4, 3, 2, 1}},
      limits_{.hidden = geometry_.hidden,
              .experts = geometry_.experts,
              .moe_layers = geometry_.moe_layers,
              .max_slots = options.max_rows * geometry_.top_k,
              .answer_dtype = geometry_.wire_dtype},
      workers_(static_cast<size_t>(options.workers)) {
  if (!options_.make_transport) {
    options_.make_transport = [hub = make_loopback_hub()](Rank) {
      return make_loopback_transport(hub);
    };
  }
  links_ = std::make_unique<WorkerLinks>(options_.make_transport(kCoordinator),
                                         WorkerLinksConfig{.session = session_,
                                                           .incarnation = 7,
                                                           .limits = limits_,
                                                           .num_ranks = options_.workers,
                                                           .microbatches = options_.microbatches},
                                         [this](Rank, uint64_t incarnation, const absl::Status&) {
                                           std::lock_guard lock(mutex_);
                                           lost_.insert(incarnation);
                                           changed_.notify_all();
                                         });
  links_->start();
}

EngineCluster::~EngineCluster() {
  CHECK(exchanges_.empty());
  for (Worker& worker : workers_) worker.server.reset();
  links_.reset();
}

runtime::ExchangeFactory EngineCluster::exchange_factory() {
  auto microbatch = std::make_shared<int>(0);
  return [this, microbatch](
             kernels::Device& device, const ExpertShard& shard,
             int max_rows) -> absl::StatusOr<std::unique_ptr<expert_parallel::Exchange>> {
    ASSIGN_OR_RETURN(auto exchange, ClusterExchange::create(device, *links_, &shard,
                                                            {.geometry = geometry_,
                                                             .microbatch = (*microbatch)++,
                                                             .max_rows = max_rows}));
    return std::make_unique<CountedExchange>(*this, std::move(exchange));
  };
}

ClusterCounts EngineCluster::counts() const {
  ClusterCounts sum;
  std::lock_guard lock(mutex_);
  for (const CountedExchange* exchange : exchanges_) {
    const ExchangeCounters& counters = exchange->counters();
    sum.exchanges += counters.exchanges;
    sum.with_several_frames += counters.with_several_frames;
    sum.rows_with_several_experts += counters.rows_with_several_experts;
    sum.workers_without_rows += counters.workers_without_rows;
    sum.replayed_rows += counters.replayed_rows;
    sum.parked_rows += counters.parked_rows;
  }
  return sum;
}

void EngineCluster::start_worker(Rank rank, const Placement& placement) {
  Worker& worker = workers_.at(static_cast<size_t>(rank));
  worker.server.reset();
  worker.shard.reset();
  worker.upload.reset();
  worker.device = value_of(kernels::Device::create(kernels::DeviceKind::kCpu, 1));
  worker.upload = value_of(kernels::StagedUpload::create(*worker.device));
  worker.shard = value_of(ExpertShard::create(*worker.device, geometry_));
  worker.server =
      value_of(ExpertServer::create(options_.make_transport(rank), *worker.device, *worker.shard,
                                    {.limits = limits_}, /*on_lost=*/nullptr));
  worker.server->start();
  load_missing(rank, placement);
  link(rank);
}

void EngineCluster::start_all(const Placement& placement) {
  for (Rank rank = 0; rank < options_.workers; ++rank) start_worker(rank, placement);
  publish(placement);
}

void EngineCluster::link(Rank rank) {
  Worker& worker = workers_.at(static_cast<size_t>(rank));
  worker.incarnation = next_incarnation_++;
  expect_ok(links_->close(rank, soon()));
  const std::string here = value_of(links_->open(rank, worker.incarnation, soon()));
  const std::string there =
      value_of(worker.server->open(session_, links_->self(), {rank, worker.incarnation}, soon()));
  expect_ok(links_->connect(rank, there, soon()));
  expect_ok(worker.server->connect(session_.coordinator_id, here, soon()));
  worker.in_view = true;
}

void EngineCluster::load_missing(Rank rank, const Placement& placement) {
  Worker& worker = workers_.at(static_cast<size_t>(rank));
  for (int layer = 0; layer < geometry_.moe_layers; ++layer) {
    for (int expert = 0; expert < geometry_.experts; ++expert) {
      if (!placement.holds(rank, layer, expert) || worker.shard->holds(layer, expert)) continue;
      PreparedExpert prepared =
          value_of(reader_->prepare(*worker.shard, *worker.upload, layer, expert));
      expect_ok(worker.upload->finish());
      absl::Status inserted;
      expect_ok(worker.server->call([&] { inserted = worker.shard->insert(std::move(prepared)); },
                                    soon()));
      expect_ok(inserted);
    }
  }
}

void EngineCluster::kill_worker(Rank rank) {
  workers_.at(static_cast<size_t>(rank)).server.reset();
}

bool EngineCluster::declare_lost(Rank rank, absl::Time deadline) {
  Worker& worker = workers_.at(static_cast<size_t>(rank));
  {
    std::unique_lock lock(mutex_);
    const bool reported = changed_.wait_until(lock, absl::ToChronoTime(deadline),
                                              [&] { return lost_.count(worker.incarnation) > 0; });
    if (!reported) return false;
  }
  expect_ok(links_->close(rank, soon()));
  worker.in_view = false;
  return true;
}

void EngineCluster::publish(const Placement& placement) {
  auto view = std::make_shared<ClusterView>();
  view->placement = std::make_shared<const Placement>(placement);
  for (const Worker& worker : workers_) {
    view->incarnation.push_back(worker.in_view ? worker.incarnation : 0);
  }
  board_.publish(std::move(view));
}

}  // namespace brigade::tests
