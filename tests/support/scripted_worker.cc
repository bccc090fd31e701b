#include "tests/support/scripted_worker.h"

#include <atomic>
#include <random>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/check.h"

namespace brigade::tests {

using namespace expert_parallel;
using runtime::ExpertKey;

namespace {

constexpr absl::Duration kBeat = absl::Milliseconds(20);

absl::Time soon() { return absl::Now() + absl::Seconds(30); }

template <typename T>
T value_of(absl::StatusOr<T> result) {
  CHECK(result.ok());
  return *std::move(result);
}

}  // namespace

SeededExperts::SeededExperts(const ExpertGeometry& geometry, uint64_t seed) : geometry_(geometry) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> uniform(-0.3f, 0.3f);
  matrices_.resize(size_t(geometry.moe_layers) * geometry.experts * 3);
  for (auto& matrix : matrices_) {
    matrix.resize(size_t(geometry.ffn) * geometry.hidden);
    for (float& value : matrix) value = uniform(random);
  }
}

ExpertSource SeededExperts::source(int moe_layer, int expert) const {
  const auto* matrices = &matrices_[(size_t(moe_layer) * geometry_.experts + expert) * 3];
  return {matrices[0].data(), matrices[1].data(), matrices[2].data()};
}

SeededHome::SeededHome(kernels::Device& device, const SeededExperts& experts)
    : experts_(experts),
      upload_(value_of(kernels::StagedUpload::create(device))),
      shard_(value_of(ExpertShard::create(device, experts.geometry()))) {}

void SeededHome::load(std::vector<ExpertKey> keys) {
  for (const ExpertKey& key : keys) {
    const auto source = experts_.source(key.moe_layer, key.expert);
    CHECK(shard_->load(*upload_, key.moe_layer, key.expert, source).ok());
  }
  host_->local_loaded(std::move(keys), absl::OkStatus());
}

void SeededHome::release(std::vector<ExpertKey> keys) {
  for (const ExpertKey& key : keys) CHECK(shard_->unload(key.moe_layer, key.expert).ok());
}

// What the two ends of the control stream share; the host's end may outlive the worker.
struct ScriptedWorker::Inbox {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<runtime::CoordinatorSays> messages;
  std::deque<runtime::WorkerSays> unsent;  // one at a time, as the host takes them
  bool host_ready = false;
  runtime::ClusterHost* host = nullptr;
  uint64_t session = 0;
  bool over = false;  // the stream has ended
  absl::Status end;
  bool stopping = false, dismissed = false;
  int rank = -1;

  void say(runtime::WorkerSays message) {
    std::lock_guard lock(mutex);
    unsent.push_back(std::move(message));
    changed.notify_all();
  }
  void finish(const absl::Status& status) {
    std::lock_guard lock(mutex);
    if (over) return;
    over = true;
    end = status;
    if (host != nullptr) host->ended(session, status);
    changed.notify_all();
  }
};

class ScriptedWorker::Stream final : public runtime::ControlSession {
 public:
  explicit Stream(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)) {}
  void send(runtime::CoordinatorSays message) override {
    std::lock_guard lock(inbox_->mutex);
    inbox_->messages.push_back(std::move(message));
    inbox_->changed.notify_all();
  }
  void handled() override {
    std::lock_guard lock(inbox_->mutex);
    inbox_->host_ready = true;
    inbox_->changed.notify_all();
  }
  void end(const absl::Status& status) override { inbox_->finish(status); }

 private:
  const std::shared_ptr<Inbox> inbox_;
};

ScriptedWorker::ScriptedWorker(std::shared_ptr<LoopbackHub> hub, const SeededExperts& experts,
                               const ScriptedWorkerOptions& options)
    : experts_(experts), options_(options), inbox_(std::make_shared<Inbox>()) {
  const ExpertGeometry& geometry = experts.geometry();
  device_ = value_of(kernels::Device::create(kernels::DeviceKind::kCpu, 1));
  upload_ = value_of(kernels::StagedUpload::create(*device_));
  shard_ = value_of(ExpertShard::create(*device_, geometry));
  const FrameLimits limits = {.hidden = geometry.hidden,
                              .experts = geometry.experts,
                              .moe_layers = geometry.moe_layers,
                              .max_slots = 4096,
                              .answer_dtype = geometry.wire_dtype};
  server_ = value_of(ExpertServer::create(make_loopback_transport(std::move(hub)), *device_,
                                          *shard_, {.limits = limits}, /*on_lost=*/nullptr));
  server_->start();
}

ScriptedWorker::~ScriptedWorker() {
  let_answers_go();
  kill();
}

void ScriptedWorker::join(runtime::ClusterHost& host) {
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->host = &host;
    inbox_->session = value_of(host.opened(std::make_shared<Stream>(inbox_)));
    inbox_->host_ready = true;
  }
  inbox_->say(runtime::Registration{.worker_id = options_.id,
                                    .incarnation = options_.incarnation,
                                    .build_version = options_.identity.build_version,
                                    .model_fingerprint = options_.identity.model_fingerprint,
                                    .numerics_id = options_.identity.numerics_id,
                                    .numerics_text = options_.identity.numerics_text,
                                    .host = "here",
                                    .device = "cpu",
                                    .memory_bytes = 1000 * options_.max_experts,
                                    .expert_bytes = 1000,
                                    .process = options_.process});
  thread_ = std::thread([this] { run(); });
}

void ScriptedWorker::run() {
  std::unique_lock lock(inbox_->mutex);
  while (!inbox_->stopping) {
    if (!inbox_->messages.empty()) {
      const runtime::CoordinatorSays message = std::move(inbox_->messages.front());
      inbox_->messages.pop_front();
      lock.unlock();
      std::visit([this](const auto& m) { on(m); }, message);
      lock.lock();
    } else if (!inbox_->over && inbox_->host_ready && !inbox_->unsent.empty()) {
      inbox_->host_ready = false;
      inbox_->host->said(inbox_->session, std::move(inbox_->unsent.front()));
      inbox_->unsent.pop_front();
    } else if (inbox_->changed.wait_for(lock, absl::ToChronoMilliseconds(kBeat)) ==
                   std::cv_status::timeout &&
               options_.beats && inbox_->rank >= 0 && inbox_->unsent.empty()) {
      inbox_->unsent.push_back(
          runtime::WorkerBeat{.resident_bytes = static_cast<int64_t>(shard_->resident_bytes())});
    }
  }
}

void ScriptedWorker::on(const runtime::Welcome& message) {
  coordinator_id_ = message.coordinator_id;
  coordinator_address_ = message.data_address;
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->rank = message.rank;
  }
  if (!options_.offers_link) return;
  const Session session = {.coordinator_id = message.coordinator_id, .secret = message.secret};
  inbox_->say(runtime::LinkOffer{
      value_of(server_->open(session, {kCoordinator, message.coordinator_incarnation},
                             {message.rank, options_.incarnation}, soon()))});
  // Fails when the coordinator has closed the link meanwhile, of which the session tells.
  server_->connect(coordinator_id_, coordinator_address_, soon()).IgnoreError();
}

void ScriptedWorker::on(const runtime::LinkUp&) {}

void ScriptedWorker::on(const runtime::LoadOrder& message) {
  if (options_.fails_to_load) {
    inbox_->say(runtime::LoadFailure{message.command, "no memory"});
    return;
  }
  runtime::LoadReport report{.command = message.command, .keys = message.keys};
  for (const ExpertKey& key : message.keys) {
    CHECK(server_
              ->call(
                  [&] {
                    if (shard_->holds(key.moe_layer, key.expert)) return;
                    CHECK(shard_
                              ->load(*upload_, key.moe_layer, key.expert,
                                     experts_.source(key.moe_layer, key.expert))
                              .ok());
                  },
                  soon())
              .ok());
    const uint64_t checksum = value_of(shard_->checksum(key.moe_layer, key.expert));
    report.checksums.push_back(options_.wrong_checksums ? checksum + 1 : checksum);
  }
  report.resident_bytes = static_cast<int64_t>(shard_->resident_bytes());
  const auto limit = static_cast<size_t>(options_.max_experts) * shard_->expert_bytes();
  if (limit > 0) CHECK(shard_->resident_bytes() <= limit);
  inbox_->say(std::move(report));
}

void ScriptedWorker::on(const runtime::ReleaseOrder& message) {
  for (const ExpertKey& key : message.keys) {
    // Not there: a load of it has failed.
    const auto unload = [&] {
      if (!shard_->holds(key.moe_layer, key.expert)) return;
      CHECK(shard_->unload(key.moe_layer, key.expert).ok());
    };
    CHECK(server_->call(unload, soon()).ok());
  }
}

void ScriptedWorker::on(const runtime::Dismissal&) {
  std::lock_guard lock(inbox_->mutex);
  inbox_->dismissed = true;
}

void ScriptedWorker::ask_to_leave() { inbox_->say(runtime::LeaveWish{"asked to stop"}); }

void ScriptedWorker::kill() {
  inbox_->finish(absl::UnavailableError("killed"));
  {
    std::lock_guard lock(inbox_->mutex);
    inbox_->stopping = true;
    inbox_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (holding_ == nullptr) server_.reset();
}

void ScriptedWorker::hold_answers() {
  holding_ = std::make_shared<std::atomic<bool>>(true);
  auto held = std::make_shared<std::atomic<bool>>(false);
  holder_ = std::thread([this, holding = holding_, held] {
    (void)server_->call(
        [holding, held] {
          *held = true;
          held->notify_all();
          holding->wait(true);
        },
        soon());
  });
  held->wait(false);
}

void ScriptedWorker::let_answers_go() {
  if (holding_ == nullptr) return;
  *holding_ = false;
  holding_->notify_all();
  holder_.join();
  holding_ = nullptr;
}

int ScriptedWorker::rank() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->rank;
}
bool ScriptedWorker::dismissed() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->dismissed;
}
bool ScriptedWorker::ended() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->over;
}
absl::Status ScriptedWorker::end_status() const {
  std::lock_guard lock(inbox_->mutex);
  return inbox_->end;
}

}  // namespace brigade::tests
