// How either kind of worker lives in its process: settings are checked and printed, the worker runs
// on a thread of its own, and the main thread alone waits for signals. Main thread.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "runtime/app/shutdown_signals.h"

namespace brigade::runtime {

// Says on stderr what is wrong with the settings or the model; the exit code.
int fail_to_start(const char* program, const absl::Status& why);
// Log lines carry `name`; the first one is the settings.
void start_log(const std::string& name, const std::string& settings);
// Returns what run() returns. The first signal is passed on, the second ends the process at once.
int live(ShutdownSignals& signals, const std::function<int()>& run,
         const std::function<void(const std::string& reason)>& ask_stop);

template <typename Worker, typename Config>
int run_worker_process(const char* program, Config config) {
  if (const absl::Status status = check(&config); !status.ok()) {
    return fail_to_start(program, status);
  }
  ShutdownSignals signals;  // before any thread
  start_log(config.name, describe(config));
  if (config.exit_on_stdin_eof) signals.watch_stdin();
  const auto worker = Worker::create(config);
  if (!worker.ok()) return fail_to_start(program, worker.status());
  return live(
      signals, [&] { return (*worker)->run(); },
      [&](const std::string& reason) { (*worker)->ask_stop(reason); });
}

}  // namespace brigade::runtime
