#include "tests/support/expert_cluster.h"

#include <random>

#include "absl/time/clock.h"
#include "expert_parallel/exchange/local_exchange.h"
#include "gtest/gtest.h"
#include "kernels/core/check.h"

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

ExpertCluster::ExpertCluster(const ExpertClusterOptions& options)
    : options_(options), x_(options.microbatches), workers_(options.workers) {
  const ExpertGeometry& geometry = options_.geometry;
  std::mt19937_64 random(options_.seed);
  std::uniform_real_distribution<float> uniform(-0.3f, 0.3f);
  weights_.resize(size_t(geometry.moe_layers) * geometry.experts * 3);
  for (auto& matrix : weights_) {
    matrix.resize(size_t(geometry.ffn) * geometry.hidden);
    for (float& value : matrix) value = uniform(random);
  }
  session_ = {.coordinator_id = 42, .secret = {9, 8, 7, 6, 5, 4, 3, 2, 1}};
  limits_ = {.hidden = geometry.hidden,
             .experts = geometry.experts,
             .moe_layers = geometry.moe_layers,
             .max_slots = options_.max_rows * geometry.top_k,
             .answer_dtype = geometry.wire_dtype};
  const auto everything = [](int, int) { return true; };
  reference_device_ = value_of(kernels::Device::create(kernels::DeviceKind::kCpu, 1));
  reference_stream_ = value_of(reference_device_->create_stream());
  reference_shard_ = make_shard(*reference_device_, everything);
  reference_ =
      value_of(make_local_exchange(*reference_device_, *reference_shard_, options_.max_rows));
  device_ = make_device(kCoordinator);
  stream_ = value_of(device_->create_stream());
  if (options_.coordinator_holds_all) shard_ = make_shard(*device_, everything);
  auto transport = make_transport(kCoordinator, *device_);
  kernels::Device* frames_on = transport->caps().device_memory ? device_.get() : nullptr;
  links_ =
      std::make_unique<WorkerLinks>(std::move(transport),
                                    WorkerLinksConfig{.session = session_,
                                                      .incarnation = 7,
                                                      .limits = limits_,
                                                      .num_ranks = options_.workers,
                                                      .microbatches = options_.microbatches,
                                                      .frames_per_rank = options_.frames_per_rank,
                                                      .device = frames_on},
                                    [this](Rank rank, uint64_t incarnation, const absl::Status&) {
                                      std::lock_guard<std::mutex> lock(evidence_mutex_);
                                      evidence_.push_back({rank, incarnation});
                                    });
  for (int i = 0; i < options_.microbatches; ++i) {
    exchanges_.push_back(
        value_of(ClusterExchange::create(*device_, *links_, shard_.get(),
                                         {.geometry = geometry,
                                          .microbatch = i,
                                          .max_rows = options_.max_rows,
                                          .homeless_rows = options_.homeless_rows})));
  }
  links_->start();
}

ExpertCluster::~ExpertCluster() {
  exchanges_.clear();
  for (Worker& worker : workers_) worker.server.reset();
  links_.reset();
}

std::unique_ptr<kernels::Device> ExpertCluster::make_device(Rank rank) {
  if (options_.make_device) return options_.make_device(rank);
  return value_of(kernels::Device::create(
      rank == kCoordinator ? options_.coordinator_device : kernels::DeviceKind::kCpu, 1));
}

std::unique_ptr<Transport> ExpertCluster::make_transport(Rank rank, kernels::Device& device) {
  return options_.make_device_transport ? options_.make_device_transport(rank, device)
                                        : options_.make_transport(rank);
}

std::unique_ptr<ExpertShard> ExpertCluster::make_shard(
    kernels::Device& device, const std::function<bool(int, int)>& wanted) {
  auto shard = value_of(ExpertShard::create(device, options_.geometry));
  auto upload = value_of(kernels::StagedUpload::create(device));
  for (int layer = 0; layer < options_.geometry.moe_layers; ++layer) {
    for (int expert = 0; expert < options_.geometry.experts; ++expert) {
      if (!wanted(layer, expert)) continue;
      const auto* matrices = &weights_[(size_t(layer) * options_.geometry.experts + expert) * 3];
      expect_ok(shard->load(*upload, layer, expert,
                            {matrices[0].data(), matrices[1].data(), matrices[2].data()}));
    }
  }
  return shard;
}

void ExpertCluster::start_worker(Rank rank, const Placement& placement) {
  Worker& worker = workers_.at(rank);
  worker.server.reset();
  worker.shard.reset();
  worker.device = make_device(rank);
  worker.shard = make_shard(
      *worker.device, [&](int layer, int expert) { return placement.holds(rank, layer, expert); });
  worker.server =
      value_of(ExpertServer::create(make_transport(rank, *worker.device), *worker.device, *worker.shard,
                                    {.limits = limits_}, /*on_lost=*/nullptr));
  worker.server->start();
  link(rank);
}

void ExpertCluster::rejoin_worker(Rank rank) { link(rank); }

void ExpertCluster::link(Rank rank) {
  Worker& worker = workers_.at(rank);
  worker.incarnation = next_incarnation_++;
  expect_ok(links_->close(rank, soon()));
  const std::string here = value_of(links_->open(rank, worker.incarnation, soon()));
  const std::string there =
      value_of(worker.server->open(session_, links_->self(), {rank, worker.incarnation}, soon()));
  expect_ok(links_->connect(rank, there, soon()));
  expect_ok(worker.server->connect(session_.coordinator_id, here, soon()));
  worker.in_view = true;
}

void ExpertCluster::kill_worker(Rank rank) { workers_.at(rank).server.reset(); }

void ExpertCluster::declare_lost(Rank rank) {
  expect_ok(links_->close(rank, soon()));
  workers_.at(rank).in_view = false;
}

std::shared_ptr<const ClusterView> ExpertCluster::view(const Placement& placement) {
  auto view = std::make_shared<ClusterView>();
  view->placement = std::make_shared<const Placement>(placement);
  for (const Worker& worker : workers_)
    view->incarnation.push_back(worker.in_view ? worker.incarnation : 0);
  return view;
}

std::vector<Rank> ExpertCluster::take_evidence() {
  std::lock_guard<std::mutex> lock(evidence_mutex_);
  std::vector<Rank> ranks;
  for (const auto& [rank, incarnation] : evidence_) {
    if (workers_[rank].in_view && workers_[rank].incarnation == incarnation) ranks.push_back(rank);
  }
  evidence_.clear();
  return ranks;
}

std::vector<uint8_t> ExpertCluster::reference(int layer, const std::vector<float>& x,
                                              const std::vector<int32_t>& experts) {
  const int rows = static_cast<int>(experts.size()) / options_.geometry.top_k;
  expect_ok(
      reference_->begin(*reference_stream_, {layer, x.data(), experts.data(), rows}, nullptr));
  EXPECT_TRUE(value_of(reference_->poll()));
  const size_t bytes = experts.size() * options_.geometry.hidden *
                       kernels::dtype_bytes(options_.geometry.wire_dtype);
  const auto* answers = static_cast<const uint8_t*>(reference_->answers());
  return std::vector<uint8_t>(answers, answers + bytes);
}

std::vector<uint8_t> ExpertCluster::answers_of(Exchange& exchange, int rows) {
  const ExpertGeometry& geometry = options_.geometry;
  std::vector<uint8_t> answers(size_t(rows) * geometry.top_k * geometry.hidden *
                               kernels::dtype_bytes(geometry.wire_dtype));
  expect_ok(stream_->copy_to_host(answers.data(), exchange.answers(), answers.size()));
  expect_ok(stream_->synchronize(soon()));
  return answers;
}

const float* ExpertCluster::upload(int microbatch, const std::vector<float>& x) {
  kernels::Buffer& buffer = x_.at(microbatch);
  const size_t bytes = size_t(options_.max_rows) * options_.geometry.hidden * sizeof(float);
  if (buffer.data() == nullptr) buffer = value_of(kernels::Buffer::allocate(*device_, bytes));
  expect_ok(stream_->copy_to_device(buffer.data(), x.data(), x.size() * sizeof(float)));
  expect_ok(stream_->synchronize(soon()));
  return buffer.as<float>();
}

}  // namespace brigade::tests
