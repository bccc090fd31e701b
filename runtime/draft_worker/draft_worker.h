// A draft worker: model, device, engine, and the draft thread, which lives the session's life with
// a coordinator and drafts in between. run() is that thread; gRPC's threads bring it events. One
// per process.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"
#include "kernels/core/waker.h"
#include "runtime/draft_worker/draft_engine.h"
#include "runtime/draft_worker/draft_outbox.h"
#include "runtime/draft_worker/draft_session.h"
#include "runtime/draft_worker/draft_stream.h"
#include "runtime/draft_worker/draft_worker_config.h"
#include "runtime/model/load_model.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime::draft_worker {

class DraftWorker {
 public:
  // Reads, checks and packs the model. `config` has passed check(). INVALID_ARGUMENT names the file
  // and the key, or the flag: a mixture of experts is no draft.
  static absl::StatusOr<std::unique_ptr<DraftWorker>> create(const DraftWorkerConfig& config);
  ~DraftWorker();

  // Until the worker was asked to stop, lost its coordinator or was refused; logs, and returns the
  // exit code.
  int run();
  // Any thread.
  void ask_stop(const std::string& reason);

 private:
  struct StreamMessage {
    uint64_t attempt;
    DraftCoordinatorSays message;
  };
  struct StreamEnded {
    uint64_t attempt;
    absl::Status why;
  };
  struct Stop {
    std::string reason;
  };
  using Event = std::variant<StreamMessage, StreamEnded, Stop>;

  explicit DraftWorker(const DraftWorkerConfig& config);
  absl::Status load();
  // Few are ever under way: one message of the stream, whose next one is asked for when it has been
  // obeyed, an end of a stream, and stops.
  void post(Event event);
  std::optional<Event> take_event();
  void handle_events();
  void work();
  void write();
  void read_on();
  std::optional<DraftWorkerSays> next_message();
  void perform(Actions actions);

  void perform(const Dial& action);
  void perform(const HangUp& action);
  void perform(const SendVocabulary& action);
  void perform(Obey& action);
  void perform(const Answer& action);
  void perform(const ForgetAll& action);
  void perform(const Note& action);
  void perform(const Exit& action);

  const DraftWorkerConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<kernels::Device> device_;
  LoadedModel model_;
  DraftHello hello_;
  DraftOutbox outbox_;
  std::unique_ptr<DraftEngine> engine_;
  std::optional<DraftSession> session_;
  std::optional<int> exit_code_;
  std::optional<DraftPong> pong_;       // to be written
  std::optional<int> vocabulary_from_;  // the next part to be written
  bool obeyed_ = false;                 // the next message may come

  kernels::Waker waker_;
  std::mutex mutex_;
  std::deque<Event> events_;  // guarded by mutex_

  std::unique_ptr<DraftStream> stream_;
};

}  // namespace brigade::runtime::draft_worker
