#include "launcher/supervisor/up_session.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/supervisor/control_server.h"
#include "launcher/supervisor/line_printer.h"
#include "launcher/supervisor/log_file.h"
#include "launcher/supervisor/log_reader.h"
#include "launcher/supervisor/process_prefix.h"
#include "launcher/supervisor/progress_lines.h"
#include "launcher/supervisor/supervisor.h"

namespace brigade::launcher {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int kLinesOfFailure = 12;

std::vector<std::string> names_of(const LaunchPlan& plan) {
  std::vector<std::string> names;
  for (const PlannedProcess& process : plan.processes) names.push_back(process.name);
  return names;
}

// As nohup leaves it.
bool is_ignored(int signal) {
  struct sigaction found = {};
  return sigaction(signal, nullptr, &found) == 0 && found.sa_handler == SIG_IGN;
}

ConnectOptions connect_options(const LaunchPlan& plan, const Endpoint& api) {
  ConnectOptions options;
  options.server = api.text();
  options.ca = plan.ca;
  options.cert = plan.cert;
  options.key = plan.key;
  options.token_file = plan.token_file;
  return options;
}

class Session : public SupervisorObserver {
 public:
  Session(const LaunchPlan& plan, StateFolder& folder, const UpOptions& options,
          const std::function<void()>& on_ready)
      : folder_(folder),
        options_(options),
        announce_ready_(on_ready),
        signals_(io_, SIGINT, SIGTERM),
        log_(log_path(folder.path(), kSupervisorName)),
        progress_(options.color),
        prefix_(names_of(plan), options.color && isatty(STDOUT_FILENO) == 1),
        supervisor_(
            io_, plan, folder,
            [&plan](const Endpoint& api) {
              return make_readiness_probe(connect_options(plan, api));
            },
            *this) {}

  absl::Status run() {
    RETURN_IF_ERROR(folder_.write_supervisor());
    ASSIGN_OR_RETURN(server_, ControlServer::create(io_, folder_.path(), supervisor_));
    if (!is_ignored(SIGHUP)) signals_.add(SIGHUP);
    await_signal();
    supervisor_.start();
    io_.run();
    server_ = nullptr;
    printer_ = nullptr;
    folder_.remove_all_but_logs();
    return end_;
  }

  void on_change() override {
    if (!supervisor_.was_ready()) progress_.show(supervisor_.report());
  }

  void on_ready() override {
    progress_.show(supervisor_.report());
    progress_.finish();
    const LaunchPlan& plan = supervisor_.plan();
    const std::string up = absl::StrFormat("%s is up in %.1f s: API %s, %s", plan.cluster,
                                           absl::ToDoubleSeconds(absl::Now() - begin_),
                                           plan.api.text(), workers_of(plan));
    log_.write(up, absl::Now());
    std::printf("%s\n", up.c_str());
    if (options_.stream_logs) {
      std::printf("Ctrl-C ends it in order, a second one at once.\n");
      printer_ = std::make_unique<LinePrinter>();
    }
    std::fflush(stdout);
    announce_ready_();
  }

  void on_note(const std::string& sentence) override {
    log_.write(sentence, absl::Now());
    if (printer_ != nullptr) {
      printer_->print(prefix_.put_before(kSupervisorName, sentence));
    } else if (!supervisor_.was_ready()) {
      progress_.say(sentence);
    }
  }

  void on_output(const std::string& process, const std::string& line) override {
    if (printer_ != nullptr) printer_->print(prefix_.put_before(process, line));
  }

  void on_end(const absl::Status& status) override {
    end_ = status;
    log_.write(status.ok() ? "ended in order" : absl::StrCat("ended: ", status.message()),
               absl::Now());
    if (!status.ok() && !supervisor_.was_ready()) show_logs_of_failed();
    if (status.ok() && !supervisor_.was_ready()) {
      end_ = absl::CancelledError("interrupted before everything was up");
    }
    signals_.cancel();
    server_ = nullptr;
    io_.stop();
  }

 private:
  void await_signal() {
    signals_.async_wait([this](const error_code& error, int) {
      if (error) return;
      if (std::exchange(stopping_, true)) {
        on_note("ending at once");
        supervisor_.kill();
      } else {
        on_note("ending in order, the coordinator first; again: at once");
        supervisor_.stop();
      }
      await_signal();
    });
  }

  // What a process said before it failed, which nobody has seen yet.
  void show_logs_of_failed() {
    for (const ProcessReport& report : supervisor_.report()) {
      if (report.state != to_string(ProcessState::kFailed)) continue;
      for (const LogLine& line : last_lines(folder_.path(), report.name, kLinesOfFailure)) {
        progress_.say(prefix_.put_before(report.name, line.text));
      }
    }
    progress_.say(absl::StrCat("logs: ", log_path(folder_.path(), "*")));
  }

  asio::io_context io_{1};
  StateFolder& folder_;
  const UpOptions options_;
  const std::function<void()> announce_ready_;
  const absl::Time begin_ = absl::Now();
  asio::signal_set signals_;
  LogFile log_;
  ProgressLines progress_;
  const ProcessPrefix prefix_;
  std::unique_ptr<LinePrinter> printer_;  // once logs are streamed
  std::unique_ptr<ControlServer> server_;
  Supervisor supervisor_;
  bool stopping_ = false;
  absl::Status end_;
};

}  // namespace

absl::Status run_cluster(const LaunchPlan& plan, StateFolder& folder, const UpOptions& options,
                         const std::function<void()>& on_ready) {
  std::signal(SIGPIPE, SIG_IGN);
  return Session(plan, folder, options, on_ready).run();
}

}  // namespace brigade::launcher
