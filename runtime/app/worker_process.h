// How either kind of worker lives in its process: settings are checked and printed, the worker is
// made, runs and goes on a thread of its own, and the main thread alone waits for signals.
#pragma once

#include <functional>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "runtime/app/shutdown_signals.h"

namespace brigade::runtime {

// Says on stderr what is wrong with the settings or the model; the exit code.
int fail_to_start(const char* program, const absl::Status& why);
// Log lines carry `name`; the first one is the settings.
void start_log(const std::string& name, const std::string& settings);
// Returns what run() returns. The first signal is passed on, the second ends the process at once; so
// does the first, when ask_stop() says false: there is nobody to ask yet.
int live(ShutdownSignals& signals, const std::function<int()>& run,
         const std::function<bool(const std::string& reason)>& ask_stop);

template <typename Worker, typename Config>
int run_worker_process(const char* program, Config config) {
  if (const absl::Status status = check(&config); !status.ok()) {
    return fail_to_start(program, status);
  }
  ShutdownSignals signals;  // before any thread
  start_log(config.name, describe(config));
  if (config.exit_on_stdin_eof) signals.watch_stdin();
  std::mutex mutex;
  Worker* alive = nullptr;  // guarded by mutex
  const auto run = [&] {
    const auto worker = Worker::create(config);
    if (!worker.ok()) return fail_to_start(program, worker.status());
    const auto set_alive = [&](Worker* now) {
      std::lock_guard lock(mutex);
      alive = now;
    };
    set_alive(worker->get());
    const int code = (*worker)->run();
    set_alive(nullptr);
    return code;
  };
  return live(signals, run, [&](const std::string& reason) {
    std::lock_guard lock(mutex);
    if (alive != nullptr) alive->ask_stop(reason);
    return alive != nullptr;
  });
}

}  // namespace brigade::runtime
