#include "runtime/worker/expert_worker.h"

#include <unistd.h>

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/host_identity.h"
#include "kernels/core/build_version.h"
#include "kernels/core/status.h"
#include "kernels/ops/numerics_probe.h"
#include "runtime/device/data_plane_choice.h"
#include "runtime/model/model_fingerprint.h"
#include "runtime/model/weights.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime::worker {
namespace {

using expert_parallel::ExpertShard;
using expert_parallel::HostIdentity;

uint64_t random_number() {
  static std::random_device source;
  return uint64_t{source()} << 32 | source();
}

// The limit that was set, or most of what a GPU has left: rows and their answers need some too.
int64_t memory_for_experts(const WorkerConfig& config, const kernels::Device& device) {
  if (config.memory_bytes > 0) return config.memory_bytes;
  return static_cast<int64_t>(device.free_bytes() / 10 * 9);
}

absl::StatusOr<Registration> introduce(const WorkerConfig& config, const OpenedModel& model,
                                       kernels::Device& device, const ExpertShard& shard) {
  const kernels::DType wire = dtype_of(config.wire_dtype), kv = dtype_of(config.kv_dtype);
  ASSIGN_OR_RETURN(const kernels::Numerics numerics, kernels::numerics_of(device, wire, kv));
  const HostIdentity identity = HostIdentity::read();
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  Registration registration{.worker_id = config.name,
                            .build_version = kBuildVersion,
                            .numerics_id = numerics.id,
                            .numerics_text = numerics.text,
                            .host = host,
                            .boot_id = identity.boot_id,
                            .network_namespace = identity.namespaces[0],
                            .device = device.name(),
                            .memory_bytes = memory_for_experts(config, device),
                            .expert_bytes = static_cast<int64_t>(shard.expert_bytes()),
                            .threads = config.threads,
                            .process = random_number()};
  ASSIGN_OR_RETURN(registration.model_fingerprint, model_fingerprint(*model.checkpoint));
  ASSIGN_OR_RETURN(const std::vector<std::string> planes,
                   data_planes(config.data_plane, config.device));
  registration.data_planes = absl::StrJoin(planes, ",");
  return registration;
}

TransportFactory transports(const WorkerConfig& config, kernels::Device& device) {
  return [&device, settings = config.device,
          end = DataPlaneEnd{.net_devices = config.data_interface}](const std::string& plane) {
    return make_data_plane(plane, device, settings, end);
  };
}

SessionConfig session_config(const WorkerConfig& config) {
  return {.coordinator = config.dial.address,
          .exit_when_lost = config.on_lost_coordinator == "exit",
          .rejoin_timeout = config.rejoin_timeout,
          .grace = config.grace,
          .random = &random_number};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertWorker>> ExpertWorker::create(const WorkerConfig& config) {
  ASSIGN_OR_RETURN(OpenedModel model, open_model(config.model));
  for (const std::string& note : model.notes) spdlog::info("{}", note);
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Device> device,
                   open_device(config.device, config.threads));
  ASSIGN_OR_RETURN(const expert_parallel::ExpertGeometry geometry,
                   expert_geometry(model.spec, model.tensors, dtype_of(config.wire_dtype)));
  if (geometry.moe_layers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model ", config.model, " has no experts: nothing for a worker to do"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<ExpertShard> shard, ExpertShard::create(*device, geometry));
  ASSIGN_OR_RETURN(Registration registration, introduce(config, model, *device, *shard));
  model.checkpoint->drop_pages();
  auto worker = std::unique_ptr<ExpertWorker>(new ExpertWorker(
      config, std::move(model), std::move(device), std::move(shard), std::move(registration)));
  ASSIGN_OR_RETURN(worker->loader_,
                   ExpertLoader::create(
                       worker->model_, *worker->device_, *worker->shard_, config.memory_bytes,
                       [plane = &worker->data_plane_](std::function<void()> change) {
                         return plane->change(std::move(change));
                       },
                       [self = worker.get()](uint64_t incarnation, WorkerMessage report) {
                         self->post(Report{incarnation, std::move(report)});
                       },
                       [](const std::string& line) { spdlog::info("{}", line); }));
  return worker;
}

ExpertWorker::ExpertWorker(const WorkerConfig& config, OpenedModel model,
                           std::unique_ptr<kernels::Device> device,
                           std::unique_ptr<ExpertShard> shard, Registration registration)
    : config_(config),
      model_(std::move(model)),
      device_(std::move(device)),
      shard_(std::move(shard)),
      registration_(std::move(registration)),
      session_(session_config(config)),
      data_plane_(
          *device_, *shard_, transports(config, *device_),
          [this](uint64_t incarnation, const absl::Status& why) {
            post(LinkEnded{incarnation, why});
          },
          [this](const absl::Status& why) { post(DeviceEnded{why}); }) {}

// The stream first, then the loader: both post events.
ExpertWorker::~ExpertWorker() {
  stream_.reset();
  if (loader_ != nullptr) loader_->stop();
}

void ExpertWorker::post(Event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(std::move(event));
  posted_.notify_one();
}

void ExpertWorker::ask_stop(const std::string& reason) { post(Stop{reason}); }

std::optional<ExpertWorker::Event> ExpertWorker::wait_for_event(absl::Time deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto there = [this] { return !events_.empty(); };
  if (deadline == absl::InfiniteFuture()) {
    posted_.wait(lock, there);
  } else {
    posted_.wait_until(lock, absl::ToChronoTime(deadline), there);
  }
  if (events_.empty()) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

// What has been heard comes before what is due, so that nobody is accused of an unread silence.
int ExpertWorker::run() {
  loader_->start();
  perform(session_.start(absl::Now()));
  while (!exit_code_) {
    std::optional<Event> event = wait_for_event(session_.next_time());
    perform(event ? handle(*std::move(event)) : session_.on_time(absl::Now()));
  }
  return *exit_code_;
}

Actions ExpertWorker::handle(Event event) {
  const absl::Time now = absl::Now();
  if (const auto* told = std::get_if<StreamMessage>(&event)) {
    Actions actions = session_.on_message(told->incarnation, told->message, now);
    if (stream_ != nullptr && told->incarnation == session_.incarnation()) stream_->next();
    return actions;
  }
  if (const auto* ended = std::get_if<StreamEnded>(&event)) {
    if (ended->incarnation == session_.incarnation()) stream_.reset();
    return session_.on_stream_ended(ended->incarnation, ended->why, now);
  }
  if (const auto* lost = std::get_if<LinkEnded>(&event))
    return session_.on_link_lost(lost->incarnation, lost->why, now);
  // Nothing in this process can use it again; a new one may.
  if (const auto* device = std::get_if<DeviceEnded>(&event))
    return {
        Exit{kExitLost, absl::StrCat("the device failed: ", std::string(device->why.message()))}};
  if (auto* report = std::get_if<Report>(&event))
    return session_.on_report(report->incarnation, std::move(report->message));
  return session_.on_stop(std::get<Stop>(event).reason, now);
}

// Some actions have consequences; these come after what is left to do.
void ExpertWorker::perform(Actions actions) {
  to_do_.insert(to_do_.end(), actions.begin(), actions.end());
  while (!to_do_.empty()) {
    const Action action = std::move(to_do_.front());
    to_do_.pop_front();
    std::visit([this](const auto& kind) { perform(kind); }, action);
  }
}

void ExpertWorker::perform(const Dial& action) {
  registration_.incarnation = action.incarnation;
  const uint64_t incarnation = action.incarnation;
  absl::StatusOr<std::unique_ptr<ControlStream>> stream =
      ControlStream::dial(config_.dial, registration_,
                          {.on_message =
                               [this, incarnation](CoordinatorMessage message) {
                                 post(StreamMessage{incarnation, std::move(message)});
                               },
                           .on_ended =
                               [this, incarnation](const absl::Status& why) {
                                 post(StreamEnded{incarnation, why});
                               }});
  if (stream.ok()) {
    stream_ = *std::move(stream);
  } else {  // a file that cannot be read just now
    post(StreamEnded{incarnation, absl::UnavailableError(std::string(stream.status().message()))});
  }
}

void ExpertWorker::perform(const HangUp&) { stream_.reset(); }

void ExpertWorker::perform(const OpenLink& action) {
  const absl::StatusOr<std::string> address =
      data_plane_.open(action.registration, action.incarnation);
  const Actions next = session_.on_link_opened(action.incarnation, address, absl::Now());
  to_do_.insert(to_do_.end(), next.begin(), next.end());
}

void ExpertWorker::perform(const CloseLink&) { data_plane_.close(); }

void ExpertWorker::perform(const Say& action) {
  if (stream_ == nullptr) return;
  absl::Status sent;
  if (const auto* beat = std::get_if<WorkerHeartbeat>(&action.message)) {
    WorkerHeartbeat counted = *beat;
    data_plane_.count(&counted);
    sent = stream_->send(counted);
  } else {
    sent = stream_->send(action.message);
  }
  // A stream that has ended says so itself.
  if (absl::IsResourceExhausted(sent)) {
    stream_.reset();
    post(StreamEnded{session_.incarnation(), sent});
  }
}

void ExpertWorker::perform(const QueueLoad& action) {
  loader_->load(session_.incarnation(), action.load, action.drop_others);
}

void ExpertWorker::perform(const QueueRelease& action) {
  loader_->release(session_.incarnation(), action.release);
}

void ExpertWorker::perform(const AbandonLoads&) { loader_->abandon(); }

void ExpertWorker::perform(const Note& action) { spdlog::info("{}", action.text); }

void ExpertWorker::perform(const Exit& action) {
  if (action.code == kExitOk) {
    spdlog::info("{}", action.reason);
  } else {
    std::fprintf(stderr, "brigade-expert-worker: %s\n", action.reason.c_str());
  }
  exit_code_ = action.code;
}

}  // namespace brigade::runtime::worker
