// An expert worker: model, device and shard, and the thread that lives the session's life with a
// coordinator. run() is that thread; every other one (gRPC's, the data plane's, the loader's)
// brings it events. One per process.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "runtime/worker/control_stream.h"
#include "runtime/worker/data_plane.h"
#include "runtime/worker/expert_loader.h"
#include "runtime/worker/worker_config.h"
#include "runtime/worker/worker_session.h"

namespace brigade::runtime::worker {

class ExpertWorker {
 public:
  // Reads and checks the model's files, runs the numerics probe. `config` has passed check().
  static absl::StatusOr<std::unique_ptr<ExpertWorker>> create(const WorkerConfig& config);
  ~ExpertWorker();

  // Until the worker has left, lost its coordinator or been refused; logs, and returns the exit
  // code.
  int run();
  // Any thread. The first drains, the second ends at once.
  void ask_stop(const std::string& reason);

 private:
  struct StreamMessage {
    uint64_t incarnation;
    CoordinatorMessage message;
  };
  struct StreamEnded {
    uint64_t incarnation;
    absl::Status why;
  };
  struct LinkEnded {
    uint64_t incarnation;
    absl::Status why;
  };
  struct Report {
    uint64_t incarnation;
    WorkerMessage message;
  };
  struct DeviceEnded {
    absl::Status why;
  };
  struct Stop {
    std::string reason;
  };
  using Event = std::variant<StreamMessage, StreamEnded, LinkEnded, Report, DeviceEnded, Stop>;

  ExpertWorker(const WorkerConfig& config, OpenedModel model,
               std::unique_ptr<kernels::Device> device,
               std::unique_ptr<expert_parallel::ExpertShard> shard, Registration registration);
  // Few are ever under way: one message of the stream, whose next one is asked for when it has been
  // handled; an end of a stream and of a link; a report for each of the loader's bounded commands.
  void post(Event event);
  std::optional<Event> wait_for_event(absl::Time deadline);
  Actions handle(Event event);
  void perform(Actions actions);

  void perform(const Dial& action);
  void perform(const HangUp& action);
  void perform(const OpenLink& action);
  void perform(const CloseLink& action);
  void perform(const Say& action);
  void perform(const QueueLoad& action);
  void perform(const QueueRelease& action);
  void perform(const AbandonLoads& action);
  void perform(const Note& action);
  void perform(const Exit& action);

  const WorkerConfig config_;
  const OpenedModel model_;
  const std::unique_ptr<kernels::Device> device_;
  const std::unique_ptr<expert_parallel::ExpertShard> shard_;
  Registration registration_;
  WorkerSession session_;
  std::deque<Action> to_do_;
  std::optional<int> exit_code_;

  std::mutex mutex_;
  std::condition_variable posted_;
  std::deque<Event> events_;  // guarded by mutex_

  DataPlane data_plane_;
  std::unique_ptr<ExpertLoader> loader_;
  std::unique_ptr<ControlStream> stream_;
};

}  // namespace brigade::runtime::worker
