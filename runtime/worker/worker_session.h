// The rules of a worker's life with its coordinator, without I/O: what happened goes in, what to do
// comes out. Dials, registers, links, serves; a lost coordinator is dialled again with growing
// delays under a new incarnation; settings that it refuses end the worker. Driven by one thread.
//
// Every event of a stream or a link names the incarnation under which it was made; late ones of an
// incarnation before are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/joining/redial.h"
#include "runtime/worker/control_messages.h"

namespace brigade::runtime::worker {

// What to do, in order.
struct Dial {  // open a stream and register
  uint64_t incarnation = 0;
};
struct HangUp {};  // end the stream
struct OpenLink {  // both directions; on_link_opened() tells how it went
  Registered registration;
  uint64_t incarnation = 0;
};
struct CloseLink {};
struct Say {
  WorkerMessage message;  // of a heartbeat only the sequence is set
};
struct QueueLoad {
  LoadExperts load;
  bool drop_others = false;  // experts that it does not name are no longer wanted
};
struct QueueRelease {
  ReleaseExperts release;
};
struct AbandonLoads {};  // queued ones are forgotten, none is reported any more
struct Note {            // for the log
  std::string text;
};
struct Exit {
  int code = 0;
  std::string reason;
};
using Action = std::variant<Dial, HangUp, OpenLink, CloseLink, Say, QueueLoad, QueueRelease,
                            AbandonLoads, Note, Exit>;
using Actions = std::vector<Action>;

struct SessionConfig {
  std::string coordinator;  // as dialled, for sentences
  bool exit_when_lost = false;
  absl::Duration rejoin_timeout = absl::Minutes(10);  // without a coordinator; then exit code 1
  absl::Duration grace = absl::Seconds(30);           // from Leaving to leaving anyhow
  absl::Duration first_delay = absl::Milliseconds(100), longest_delay = absl::Seconds(5);
  absl::Duration answer_timeout = absl::Seconds(30);  // for the answer to a registration
  std::function<uint64_t()> random;                   // for incarnations and jitter
};

class WorkerSession {
 public:
  explicit WorkerSession(SessionConfig config);

  Actions start(absl::Time now);
  Actions on_message(uint64_t incarnation, const CoordinatorMessage& message, absl::Time now);
  Actions on_stream_ended(uint64_t incarnation, const absl::Status& why, absl::Time now);
  Actions on_link_opened(uint64_t incarnation, const absl::StatusOr<std::string>& address,
                         absl::Time now);
  Actions on_link_lost(uint64_t incarnation, const absl::Status& why, absl::Time now);
  // A load has ended (ExpertsLoaded or LoadFailed).
  Actions on_report(uint64_t incarnation, WorkerMessage report);
  // SIGTERM: the first drains, the second ends at once.
  Actions on_stop(const std::string& reason, absl::Time now);
  // At next_time() or later.
  Actions on_time(absl::Time now);
  absl::Time next_time() const;

  enum class State { kIdle, kBackingOff, kRegistering, kLinking, kServing, kEnded };
  State state() const { return state_; }
  uint64_t incarnation() const { return incarnation_; }
  bool leaving() const { return leave_by_ != absl::InfiniteFuture(); }

 private:
  bool has_stream() const {
    return state_ == State::kRegistering || state_ == State::kLinking || state_ == State::kServing;
  }
  bool registered() const { return state_ == State::kLinking || state_ == State::kServing; }
  absl::Time give_up_at() const;
  void dial(absl::Time now, Actions* actions);
  void back_off(absl::Time now);
  // The stream is over or useless: closes what there is and dials again, or ends.
  void lose(const std::string& why, bool hang_up, absl::Time now, Actions* actions);
  void end(int code, const std::string& reason, Actions* actions);
  void note(const std::string& text, absl::Time now, Actions* actions);
  void beat(absl::Time now, Actions* actions);

  void on(const Registered& message, absl::Time now, Actions* actions);
  void on(const LinkConnected& message, absl::Time now, Actions* actions);
  void on(const LoadExperts& message, absl::Time now, Actions* actions);
  void on(const ReleaseExperts& message, absl::Time now, Actions* actions);
  void on(const CoordinatorHeartbeat& message, absl::Time now, Actions* actions);
  void on(const Dismissed& message, absl::Time now, Actions* actions);

  const SessionConfig config_;
  State state_ = State::kIdle;
  uint64_t incarnation_ = 0;
  Registered terms_;        // of the registration in force
  bool first_load_ = true;  // of this registration, still to come
  int attempts_ = 0;        // since it last served
  int64_t sequence_ = 0;
  RepeatedNote notes_;
  std::string last_loss_;
  absl::Time alone_since_ = absl::InfiniteFuture();  // without a coordinator that serves
  absl::Time dial_at_ = absl::InfiniteFuture();
  absl::Time answer_by_ = absl::InfiniteFuture();
  absl::Time heard_ = absl::InfinitePast();
  absl::Time beat_at_ = absl::InfiniteFuture();
  absl::Time leave_by_ = absl::InfiniteFuture();
};

}  // namespace brigade::runtime::worker
