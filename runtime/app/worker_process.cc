#include "runtime/app/worker_process.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/time/clock.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

constexpr int kBadSettings = 2;

}  // namespace

int fail_to_start(const char* program, const absl::Status& why) {
  std::fprintf(stderr, "%s: %s\n", program, std::string(why.message()).c_str());
  return kBadSettings;
}

void start_log(const std::string& name, const std::string& settings) {
  spdlog::set_default_logger(spdlog::stderr_color_mt(name));
  spdlog::info("settings\n{}", settings);
}

// The worker's end is told by one more signal.
int live(ShutdownSignals& signals, const std::function<int()>& run,
         const std::function<bool(const std::string& reason)>& ask_stop) {
  std::atomic<bool> ended{false};
  int code = 0;
  std::thread life([&] {
    code = run();
    ended = true;
    kill(getpid(), SIGTERM);
  });
  int asked = 0;
  while (true) {
    if (!signals.wait_until(absl::Now() + absl::Hours(1))) continue;
    if (ended) break;
    const bool heard = ask_stop("a signal to stop");
    // What is made, runs or goes may take its time to end; at once means now.
    if (++asked == 2 || !heard) {
      spdlog::warn("{}: stopping at once", asked == 2 ? "second signal" : "nothing to wait for");
      std::fflush(nullptr);
      _exit(0);
    }
  }
  life.join();
  std::fflush(nullptr);
  return code;
}

}  // namespace brigade::runtime
