// The rules of a draft worker's life with its coordinator, without I/O: what happened goes in, what
// to do comes out. Dials, greets, serves; a lost coordinator is dialled again with growing delays;
// a refusal of what no second try can change ends the worker. Driven by one thread.
//
// Every event of a stream names the attempt under which it was dialled; late ones of an attempt
// before are ignored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/joining/redial.h"
#include "runtime/speculative/draft_messages.h"

namespace brigade::runtime::draft_worker {

// What to do, in order.
struct Dial {  // open a stream and greet
  uint64_t attempt = 0;
};
struct HangUp {};
struct SendVocabulary {};  // all of it
struct Obey {              // commands for the engine
  DraftCommands commands;
};
struct Answer {  // with a pong
  DraftPing ping;
};
struct ForgetAll {};  // no sequence is open any more
struct Note {
  std::string text;
};
struct Exit {
  int code = 0;
  std::string reason;
};
using Action = std::variant<Dial, HangUp, SendVocabulary, Obey, Answer, ForgetAll, Note, Exit>;
using Actions = std::vector<Action>;

struct SessionConfig {
  std::string coordinator;  // as dialled, for sentences
  uint64_t vocabulary_hash = 0;
  absl::Duration rejoin_timeout = absl::Minutes(10);  // without a coordinator; then exit code 1
  absl::Duration first_delay = absl::Milliseconds(100), longest_delay = absl::Seconds(5);
  absl::Duration answer_timeout = absl::Seconds(30);  // for the coordinator's hello
  std::function<uint64_t()> random;                   // for jitter
};

class DraftSession {
 public:
  explicit DraftSession(SessionConfig config);

  Actions start(absl::Time now);
  Actions on_message(uint64_t attempt, DraftCoordinatorSays message, absl::Time now);
  Actions on_stream_ended(uint64_t attempt, const absl::Status& why, absl::Time now);
  // SIGTERM. Nobody waits for a draft worker: it leaves at once.
  Actions on_stop(const std::string& reason);
  // At next_time() or later.
  Actions on_time(absl::Time now);
  absl::Time next_time() const;

  enum class State { kIdle, kBackingOff, kGreeting, kServing, kEnded };
  State state() const { return state_; }
  uint64_t attempt() const { return attempt_; }

 private:
  bool has_stream() const { return state_ == State::kGreeting || state_ == State::kServing; }
  void dial(absl::Time now, Actions* actions);
  void lose(const std::string& why, bool hang_up, absl::Time now, Actions* actions);
  void end(int code, const std::string& reason, Actions* actions);
  void note(const std::string& text, absl::Time now, Actions* actions);

  void on(CoordinatorHello message, absl::Time now, Actions* actions);
  void on(VocabularyWanted message, absl::Time now, Actions* actions);
  void on(DraftCommands message, absl::Time now, Actions* actions);
  void on(DraftPing message, absl::Time now, Actions* actions);

  const SessionConfig config_;
  State state_ = State::kIdle;
  uint64_t attempt_ = 0;
  int failures_ = 0;  // since it last served
  absl::Duration lost_after_ = absl::InfiniteDuration();
  RepeatedNote notes_;
  std::string last_loss_;
  absl::Time alone_since_ = absl::InfiniteFuture();
  absl::Time dial_at_ = absl::InfiniteFuture();
  absl::Time answer_by_ = absl::InfiniteFuture();
  absl::Time heard_ = absl::InfinitePast();
};

}  // namespace brigade::runtime::draft_worker
