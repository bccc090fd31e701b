#include "launcher/supervisor/supervisor.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr auto kPortInterval = std::chrono::milliseconds(20);
constexpr auto kStartingInterval = std::chrono::milliseconds(100);  // between questions
constexpr auto kUpInterval = std::chrono::milliseconds(2000);
constexpr auto kRefreshLimit = std::chrono::seconds(1);

// The port that a process wrote; 0: not yet.
int read_port(const std::string& path) {
  int port = 0;
  std::ifstream(path) >> port;
  return port;
}

}  // namespace

struct Supervisor::Entry {
  std::unique_ptr<ManagedProcess> process;
  int life = 0;                  // its starts, as far as they were taken note of
  uint64_t old_incarnation = 0;  // a worker's registration that is of an earlier life
};

struct Supervisor::Timers {
  explicit Timers(asio::io_context& io) : ports(io), readiness(io), ready_limit(io), refresh(io) {}
  asio::steady_timer ports, readiness, ready_limit, refresh;
};

Supervisor::Supervisor(asio::io_context& io, const LaunchPlan& plan, StateFolder& folder,
                       ProbeMaker make_probe, SupervisorObserver& observer)
    : io_(io),
      plan_(plan),
      folder_(folder),
      make_probe_(std::move(make_probe)),
      observer_(observer),
      timers_(std::make_unique<Timers>(io)) {
  for (const PlannedProcess& planned : plan_.processes) {
    ManagedProcess::Callbacks callbacks;
    callbacks.changed = [this] { schedule_advance(); };
    callbacks.note = [this](const std::string& sentence) { observer_.on_note(sentence); };
    callbacks.output = [this, name = planned.name](const std::string& line) {
      observer_.on_output(name, line);
    };
    entries_.push_back(std::make_unique<Entry>());
    entries_.back()->process = std::make_unique<ManagedProcess>(io_, planned, plan_.restart,
                                                                folder_, std::move(callbacks));
  }
}

Supervisor::~Supervisor() = default;

void Supervisor::start() {
  phase_ = Phase::kOpening;
  if (!was_ready_) {
    timers_->ready_limit.expires_after(absl::ToChronoNanoseconds(plan_.ready_timeout));
    timers_->ready_limit.async_wait([this](const error_code& error) {
      if (error || was_ready_) return;
      std::string waiting;
      for (const auto& entry : entries_) {
        if (is_ready(*entry)) continue;
        absl::StrAppend(&waiting, waiting.empty() ? "" : "; ", entry->process->planned().name, ": ",
                        detail_of(*entry));
      }
      if (ports_known_ && !readiness_.reached.ok()) {
        absl::StrAppend(&waiting, "; last answer of the API at ", plan_.api.text(), ": ",
                        readiness_.reached.message());
      }
      begin_stop(
          absl::DeadlineExceededError(absl::StrCat(
              "not ready within ", absl::FormatDuration(plan_.ready_timeout), ": ", waiting)),
          false);
    });
  }
  Entry& first = coordinator();
  for (const std::string& file :
       {first.process->planned().port_file, first.process->planned().control_port_file}) {
    if (!file.empty()) std::remove(absl::StrCat(folder_.path(), "/", file).c_str());
  }
  prepare(first);
  first.process->restart();
  poll_ports();
}

void Supervisor::prepare(Entry& entry) {
  auto command = start_command(plan_, entry.process->planned(), ports_known_);
  CHECK(command.ok());  // the plan was made with it
  entry.process->set_command(*std::move(command));
}

bool Supervisor::learn_ports() {
  const PlannedProcess& planned = coordinator().process->planned();
  const auto learn = [this](const std::string& file, int* port) {
    if (file.empty()) return true;  // a fixed one
    const int read = read_port(absl::StrCat(folder_.path(), "/", file));
    if (read != 0) *port = read;
    return read != 0;
  };
  if (!learn(planned.port_file, &plan_.api.port)) return false;
  if (!learn(planned.control_port_file, &plan_.control.port)) return false;
  ports_known_ = true;
  prepare(coordinator());  // its next life
  if (probe_ == nullptr) probe_ = make_probe_(plan_.api);
  return true;
}

void Supervisor::poll_ports() {
  timers_->ports.expires_after(kPortInterval);
  timers_->ports.async_wait([this](const error_code& error) {
    if (error || phase_ != Phase::kOpening) return;
    advance();
    if (phase_ == Phase::kOpening) poll_ports();
  });
}

void Supervisor::schedule_advance() {
  if (std::exchange(advance_scheduled_, true)) return;
  asio::post(io_, [this] {
    advance_scheduled_ = false;
    advance();
  });
}

void Supervisor::advance() {
  note_new_lives();
  if (phase_ == Phase::kOpening) advance_opening();
  if (phase_ == Phase::kOpening || phase_ == Phase::kRunning) watch_failures();
  if (phase_ == Phase::kStoppingCoordinator || phase_ == Phase::kStoppingWorkers) {
    advance_stopping();
  }
  if (phase_ != Phase::kEnded) observer_.on_change();
}

// What was known of a process's earlier life says nothing about the new one.
void Supervisor::note_new_lives() {
  bool any = false;
  for (const auto& entry : entries_) {
    if (entry->life == entry->process->starts()) continue;
    entry->life = entry->process->starts();
    any = true;
    if (entry == entries_.front()) {
      readiness_ = {.reached = absl::UnavailableError("not asked yet")};
      continue;
    }
    const auto known = readiness_.workers.find(entry->process->planned().name);
    if (known != readiness_.workers.end()) entry->old_incarnation = known->second.incarnation;
  }
  if (any && phase_ == Phase::kRunning) poll_readiness();
}

void Supervisor::advance_opening() {
  if (coordinator().process->state() != ProcessState::kRunning || !learn_ports()) return;
  phase_ = Phase::kRunning;
  for (size_t i = 1; i < entries_.size(); ++i) {
    prepare(*entries_[i]);
    entries_[i]->process->restart();
  }
  poll_readiness();
}

// A worker that gives up is missed once everything was up, and fatal before; without a coordinator
// there is nothing to supervise.
void Supervisor::watch_failures() {
  const ProcessState state = coordinator().process->state();
  if (state == ProcessState::kExited) return begin_stop(absl::OkStatus(), false);
  for (const auto& entry : entries_) {
    const bool fatal = !was_ready_ || entry == entries_.front();
    if (fatal && entry->process->state() == ProcessState::kFailed) {
      return begin_stop(absl::AbortedError(entry->process->failure()), false);
    }
    if (!was_ready_ && entry->process->state() == ProcessState::kExited) {
      return begin_stop(absl::AbortedError(absl::StrCat(entry->process->planned().name,
                                                        " ended before everything was up")),
                        false);
    }
  }
}

void Supervisor::stop() { begin_stop(absl::OkStatus(), false); }

void Supervisor::kill() {
  at_once_ = true;
  for (const auto& entry : entries_) entry->process->kill();
  stop();
  schedule_advance();
}

void Supervisor::begin_stop(const absl::Status& status, bool start_again) {
  if (phase_ == Phase::kEnded) return;
  start_again_ = start_again;
  if (phase_ == Phase::kStoppingCoordinator || phase_ == Phase::kStoppingWorkers) return;
  end_status_ = status;
  phase_ = Phase::kStoppingCoordinator;
  timers_->ready_limit.cancel();
  // Workers serve the streams that the coordinator finishes; it dismisses them then.
  for (const auto& entry : entries_) entry->process->let_end();
  coordinator().process->stop();
  schedule_advance();
}

bool Supervisor::all_settled() const {
  for (const auto& entry : entries_) {
    if (!entry->process->settled()) return false;
  }
  return true;
}

void Supervisor::advance_stopping() {
  if (phase_ == Phase::kStoppingCoordinator) {
    if (!coordinator().process->settled()) return;
    phase_ = Phase::kStoppingWorkers;
    for (size_t i = 1; i < entries_.size(); ++i) {
      if (at_once_) {
        entries_[i]->process->kill();
      } else {
        entries_[i]->process->stop();
      }
    }
  }
  if (all_settled()) end_or_start_again();
}

void Supervisor::end_or_start_again() {
  if (start_again_) {
    start_again_ = false;
    start();
    return;
  }
  phase_ = Phase::kEnded;
  probe_ = nullptr;
  timers_->ports.cancel();
  timers_->readiness.cancel();
  for (const auto& done : std::exchange(refreshed_, {})) done();
  observer_.on_end(end_status_);
}

absl::Status Supervisor::restart(const std::string& name) {
  if (phase_ != Phase::kRunning) {
    return absl::FailedPreconditionError(phase_ == Phase::kOpening ? "the cluster is starting"
                                                                   : "the cluster is stopping");
  }
  for (const auto& entry : entries_) {
    if (entry->process->planned().name != name) continue;
    observer_.on_note(absl::StrCat(name, ": restart asked for"));
    if (entry == entries_.front()) {
      begin_stop(absl::OkStatus(), true);
    } else {
      prepare(*entry);
      entry->process->restart();
    }
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("no process \"", name, "\" in ", plan_.cluster));
}

void Supervisor::poll_readiness() {
  if (phase_ != Phase::kRunning || probe_ == nullptr) return;
  std::vector<int> lives;
  for (const auto& entry : entries_) lives.push_back(entry->process->starts());
  // Not taken while an earlier question is open; the next turn asks again.
  probe_->ask([this, lives](const Readiness& readiness) {
    asio::post(io_, [this, lives, readiness] { take_readiness(readiness, lives); });
  });
  const bool all_ready = std::all_of(entries_.begin(), entries_.end(),
                                     [this](const auto& entry) { return is_ready(*entry); });
  timers_->readiness.expires_after(all_ready ? kUpInterval : kStartingInterval);
  timers_->readiness.async_wait([this](const error_code& error) {
    if (!error) poll_readiness();
  });
}

// `lives`: the starts of each process when the question was asked.
void Supervisor::take_readiness(const Readiness& readiness, const std::vector<int>& lives) {
  if (phase_ != Phase::kRunning || lives.front() != coordinator().process->starts()) return;
  for (size_t i = 1; i < entries_.size(); ++i) {
    if (lives[i] == entries_[i]->process->starts()) continue;
    const auto worker = readiness.workers.find(entries_[i]->process->planned().name);
    if (worker != readiness.workers.end()) {
      entries_[i]->old_incarnation = worker->second.incarnation;
    }
  }
  readiness_ = readiness;
  timers_->refresh.cancel();
  for (const auto& done : std::exchange(refreshed_, {})) done();
  check_ready();
  observer_.on_change();
}

void Supervisor::check_ready() {
  if (was_ready_) return;
  for (const auto& entry : entries_) {
    if (!is_ready(*entry)) return;
  }
  was_ready_ = true;
  timers_->ready_limit.cancel();
  observer_.on_ready();
}

bool Supervisor::is_ready(const Entry& entry) const {
  const ManagedProcess& process = *entry.process;
  if (process.state() != ProcessState::kRunning || !readiness_.reached.ok()) return false;
  if (process.planned().role == Role::kCoordinator) return readiness_.ready;
  // Nobody waits for drafts.
  if (process.planned().role == Role::kDraft) return true;
  const auto worker = readiness_.workers.find(process.planned().name);
  return worker != readiness_.workers.end() && worker->second.active &&
         worker->second.incarnation != entry.old_incarnation;
}

std::string Supervisor::detail_of(const Entry& entry) const {
  const ManagedProcess& process = *entry.process;
  if (process.state() == ProcessState::kFailed) return process.failure();
  if (process.state() != ProcessState::kRunning) {
    return process.last_end() ? absl::StrCat("last ended with ", process.last_end()->text()) : "";
  }
  if (is_ready(entry)) return "";
  if (!ports_known_) return "opens its ports";
  if (!readiness_.reached.ok()) {
    // UNAVAILABLE is what anyone says who is not there yet; the rest is worth reading.
    return absl::IsUnavailable(readiness_.reached)
               ? "no answer yet"
               : absl::StrCat("no answer yet: ", readiness_.reached.message());
  }
  if (process.planned().role == Role::kCoordinator) {
    return readiness_.stage.empty() ? readiness_.reason
                                    : absl::StrCat("loading: ", readiness_.stage);
  }
  const auto worker = readiness_.workers.find(process.planned().name);
  return worker == readiness_.workers.end() ? "joins the coordinator" : worker->second.detail;
}

std::vector<ProcessReport> Supervisor::report() const {
  std::vector<ProcessReport> reports;
  for (const auto& entry : entries_) {
    const ManagedProcess& process = *entry->process;
    ProcessReport report;
    report.name = process.planned().name;
    report.role = to_string(process.planned().role);
    report.host = process.planned().host;
    report.ready = is_ready(*entry);
    report.state = to_string(process.state());
    report.pid = process.pid();
    report.restarts = process.restarts();
    report.starts = process.starts();
    if (report.pid > 0) {
      report.uptime_seconds = absl::ToDoubleSeconds(absl::Now() - process.started());
    }
    report.detail = detail_of(*entry);
    if (!report.ready && process.planned().role == Role::kCoordinator) {
      report.fraction = readiness_.fraction;
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::Duration Supervisor::stop_limit() const {
  absl::Duration coordinator, workers;
  for (const PlannedProcess& process : plan_.processes) {
    absl::Duration& longest = process.role == Role::kCoordinator ? coordinator : workers;
    longest = std::max(longest, process.grace);
  }
  return coordinator + workers;
}

void Supervisor::refresh(std::function<void()> done) {
  if (phase_ != Phase::kRunning || probe_ == nullptr) return done();
  refreshed_.push_back(std::move(done));
  timers_->refresh.expires_after(kRefreshLimit);
  timers_->refresh.async_wait([this](const error_code& error) {
    if (error) return;
    for (const auto& waiting : std::exchange(refreshed_, {})) waiting();
  });
  poll_readiness();
}

}  // namespace brigade::launcher
