// brigade-draft-worker: config, construct, run.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "runtime/app/shutdown_signals.h"
#include "runtime/draft_worker/draft_worker.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace {

namespace runtime = brigade::runtime;
using runtime::draft_worker::DraftWorker;

constexpr int kBadSettings = 2;

int fail(const absl::Status& status) {
  std::fprintf(stderr, "brigade-draft-worker: %s\n", std::string(status.message()).c_str());
  return kBadSettings;
}

// The worker lives on a thread of its own: the main thread alone waits for signals. Its end is told
// by one more signal.
int run(DraftWorker& worker, runtime::ShutdownSignals& signals) {
  std::atomic<bool> ended{false};
  int code = 0;
  std::thread life([&] {
    code = worker.run();
    ended = true;
    kill(getpid(), SIGTERM);
  });
  int asked = 0;
  while (true) {
    if (!signals.wait_until(absl::Now() + absl::Hours(1))) continue;
    if (ended) break;
    worker.ask_stop("a signal to stop");
    if (++asked == 2) {
      spdlog::warn("second signal: stopping at once");
      std::fflush(nullptr);
      _exit(0);
    }
  }
  life.join();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  runtime::draft_worker::ParsedDraftFlags parsed =
      runtime::draft_worker::parse_draft_flags(argc, argv);
  if (parsed.exit_code >= 0) return parsed.exit_code;
  if (const absl::Status status = check(&parsed.config); !status.ok()) return fail(status);
  runtime::ShutdownSignals signals;  // before any thread
  spdlog::set_default_logger(spdlog::stderr_color_mt(parsed.config.name));
  if (parsed.config.exit_on_stdin_eof) signals.watch_stdin();
  spdlog::info("settings\n{}", describe(parsed.config));
  auto worker = DraftWorker::create(parsed.config);
  if (!worker.ok()) return fail(worker.status());
  const int code = run(**worker, signals);
  std::fflush(nullptr);
  return code;
}
