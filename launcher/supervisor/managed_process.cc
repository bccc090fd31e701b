#include "launcher/supervisor/managed_process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "launcher/supervisor/child.h"
#include "launcher/supervisor/log_file.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kMaxLine = 16 << 10;  // longer ones are cut into several
// What may still be read after a process has ended; another holder of its stdout could write for
// ever.
constexpr size_t kMaxLastOutput = 1 << 20;

}  // namespace

struct ManagedProcess::Log : LogFile {
  using LogFile::LogFile;
};

struct ManagedProcess::Timers {
  explicit Timers(asio::io_context& io) : kill(io), start(io) {}
  asio::steady_timer kill, start;
};

// One run of the program. Handlers keep it alive; `owner` is gone once the run is over.
struct ManagedProcess::Life {
  Life(asio::io_context& io, Child started)
      : child(std::move(started)),
        output(io, dup(child.output_descriptor())),
        exit(io, dup(child.exit_descriptor())) {}

  Child child;
  asio::posix::stream_descriptor output, exit;
  std::array<char, 16 << 10> buffer;
  std::string partial;  // of a line
  ManagedProcess* owner = nullptr;
};

const char* to_string(ProcessState state) {
  switch (state) {
    case ProcessState::kWaiting:
      return "waiting";
    case ProcessState::kRunning:
      return "running";
    case ProcessState::kBackingOff:
      return "backing off";
    case ProcessState::kStopping:
      return "stopping";
    case ProcessState::kExited:
      return "exited";
    case ProcessState::kFailed:
      return "failed";
  }
  return "?";
}

ManagedProcess::ManagedProcess(asio::io_context& io, const PlannedProcess& planned,
                               const RestartRules& rules, StateFolder& folder, Callbacks callbacks)
    : io_(io),
      planned_(planned),
      rules_(rules),
      folder_(folder),
      callbacks_(std::move(callbacks)),
      command_(planned.argv),
      schedule_(rules),
      log_(std::make_unique<Log>(log_path(folder.path(), planned.name))),
      timers_(std::make_unique<Timers>(io)) {}

ManagedProcess::~ManagedProcess() {
  if (life_ == nullptr) return;
  life_->owner = nullptr;
  life_->child.kill_group();
  folder_.remove_process(planned_.name);
}

bool ManagedProcess::settled() const {
  return life_ == nullptr && state_ != ProcessState::kBackingOff && !start_when_stopped_;
}

pid_t ManagedProcess::pid() const { return life_ == nullptr ? -1 : life_->child.pid(); }

void ManagedProcess::set_state(ProcessState state) {
  if (state_ == state) return;
  state_ = state;
  callbacks_.changed();
}

void ManagedProcess::start() {
  if (life_ != nullptr) return;
  timers_->start.cancel();
  started_ = absl::Now();
  ++starts_;
  auto child = Child::spawn(command_);
  if (!child.ok()) {
    callbacks_.note(absl::StrCat(planned_.name, ": ", child.status().message()));
    failure_ = std::string(child.status().message());
    set_state(ProcessState::kFailed);
    return;
  }
  life_ = std::make_shared<Life>(io_, *std::move(child));
  life_->owner = this;
  life_->output.non_blocking(true);
  folder_.write_process(planned_.name, life_->child.pid());
  read_output(life_);
  await_exit(life_);
  set_state(ProcessState::kRunning);
}

// Waits, then reads: bytes that an asynchronous read had taken already would be lost when the exit
// is handled first.
void ManagedProcess::read_output(std::shared_ptr<Life> life) {
  life->output.async_wait(asio::posix::stream_descriptor::wait_read,
                          [life](const error_code& error) {
                            if (error || life->owner == nullptr) return;
                            if (life->owner->read_chunk(*life)) life->owner->read_output(life);
                          });
}

// False at the end of the output.
bool ManagedProcess::read_chunk(Life& life) {
  error_code error;
  const size_t bytes = life.output.read_some(asio::buffer(life.buffer), error);
  if (error == asio::error::would_block) return true;
  take_output(life, bytes);
  return !error && bytes > 0;
}

void ManagedProcess::take_output(Life& life, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    const char c = life.buffer[i];
    if (c != '\n') life.partial += c;
    if (c == '\n' || life.partial.size() >= kMaxLine) take_line(std::exchange(life.partial, {}));
  }
}

void ManagedProcess::take_line(const std::string& line) {
  log_->write(line, absl::Now());
  callbacks_.output(line);
}

void ManagedProcess::await_exit(std::shared_ptr<Life> life) {
  life->exit.async_wait(asio::posix::stream_descriptor::wait_read, [life](const error_code& error) {
    if (!error && life->owner != nullptr) life->owner->on_exit(life);
  });
}

void ManagedProcess::drain_output(Life& life) {
  error_code error;
  for (size_t total = 0; total < kMaxLastOutput;) {
    const size_t bytes = life.output.read_some(asio::buffer(life.buffer), error);
    if (error || bytes == 0) break;
    take_output(life, bytes);
    total += bytes;
  }
  if (!life.partial.empty()) take_line(std::exchange(life.partial, {}));
}

void ManagedProcess::on_exit(std::shared_ptr<Life> life) {
  const ProcessEnd end = life->child.reap();
  drain_output(*life);
  life->owner = nullptr;
  error_code ignored;
  life->output.close(ignored);
  life->exit.close(ignored);
  life_ = nullptr;
  timers_->kill.cancel();
  folder_.remove_process(planned_.name);
  last_end_ = end;
  if (start_when_stopped_) {
    start_when_stopped_ = false;
    start();
  } else if (state_ == ProcessState::kStopping || !may_start_again_) {
    set_state(ProcessState::kExited);
  } else {
    start_again_or_not(end);
  }
}

void ManagedProcess::start_again_or_not(const ProcessEnd& end) {
  const auto decision = schedule_.ended(end, started_, absl::Now());
  if (decision.delay) {
    back_off(*decision.delay, decision.restarts_in_window, end.text());
    return;
  }
  std::string sentence = absl::StrCat(planned_.name, " ended with ", end.text());
  if (decision.gave_up) {
    if (decision.restarts_in_window > 0) {
      absl::StrAppend(&sentence, " after ", decision.restarts_in_window, " restarts in ",
                      absl::FormatDuration(rules_.window));
    }
    absl::StrAppend(&sentence, " and is not started again");
    failure_ = sentence;
  }
  callbacks_.note(sentence);
  set_state(decision.gave_up ? ProcessState::kFailed : ProcessState::kExited);
}

void ManagedProcess::back_off(absl::Duration delay, int number, const std::string& why) {
  callbacks_.note(absl::StrCat(planned_.name, " ended with ", why, "; starts again in ",
                               absl::FormatDuration(delay), " (restart ", number, " of at most ",
                               rules_.max_restarts, ")"));
  timers_->start.expires_after(absl::ToChronoNanoseconds(delay));
  timers_->start.async_wait([this](const error_code& error) {
    if (!error && state_ == ProcessState::kBackingOff) start();
  });
  set_state(ProcessState::kBackingOff);
}

void ManagedProcess::let_end() {
  may_start_again_ = false;
  start_when_stopped_ = false;
  timers_->start.cancel();
  if (state_ == ProcessState::kBackingOff) set_state(ProcessState::kExited);
}

void ManagedProcess::stop() {
  let_end();
  if (life_ == nullptr) {
    if (state_ != ProcessState::kFailed) set_state(ProcessState::kExited);
    return;
  }
  if (state_ == ProcessState::kStopping) return;
  if (planned_.remote) {
    life_->child.close_stdin();
  } else {
    life_->child.signal(SIGTERM);
    life_->child.signal(SIGCONT);  // a stopped process takes no SIGTERM
  }
  timers_->kill.expires_after(absl::ToChronoNanoseconds(planned_.grace));
  timers_->kill.async_wait([this](const error_code& error) {
    if (error || life_ == nullptr) return;
    callbacks_.note(absl::StrCat(planned_.name, " did not end within ",
                                 absl::FormatDuration(planned_.grace), " and is killed"));
    life_->child.kill_group();
  });
  set_state(ProcessState::kStopping);
}

void ManagedProcess::kill() {
  let_end();
  if (life_ == nullptr) return stop();
  life_->child.kill_group();
  set_state(ProcessState::kStopping);
}

void ManagedProcess::restart() {
  schedule_.reset();
  failure_.clear();
  stop();
  may_start_again_ = true;
  start_when_stopped_ = life_ != nullptr;
  if (life_ == nullptr) start();
}

}  // namespace brigade::launcher
