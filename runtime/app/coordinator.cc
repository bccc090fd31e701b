#include "runtime/app/coordinator.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "runtime/api/grpc_server.h"
#include "runtime/api/metrics.h"
#include "runtime/api/serving_state.h"
#include "runtime/app/loading_display.h"
#include "runtime/app/model_host.h"
#include "runtime/app/port_file.h"
#include "runtime/app/teardown_guard.h"
#include "spdlog/spdlog.h"

namespace brigade::runtime {
namespace {

constexpr int kOk = 0;
constexpr int kUsageError = 2;
constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kShortTick = absl::Milliseconds(5);

int fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "brigade-coordinator: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

// Ends the process: what it does cannot be cut short and holds nothing that needs an orderly end.
[[noreturn]] void leave(const char* what_it_did) {
  spdlog::info("stopped while {}", what_it_did);
  std::fflush(nullptr);
  _exit(kOk);
}

// Opens files and device in a thread of its own, so that a signal is answered meanwhile: what a
// device computes is looked at before anybody is let in, and that may take long.
absl::StatusOr<std::unique_ptr<ModelHost>> open_host(const CoordinatorConfig& config,
                                                     ShutdownSignals& signals) {
  absl::StatusOr<std::unique_ptr<ModelHost>> host;
  std::atomic<bool> ended{false};
  std::thread opening([&] {
    host = ModelHost::open(config);
    ended = true;
  });
  while (!ended) {
    if (signals.wait_until(absl::Now() + kShortTick)) leave("the model was opened");
  }
  opening.join();
  return host;
}

// Loads in a thread of its own, so that signals and probes are answered meanwhile.
class Loading {
 public:
  Loading(const CoordinatorConfig& config, ModelHost& host, ServingState& state)
      : thread_([this, &config, &host, &state] {
          LoadingDisplay progress(&state);
          status_ = host.load(config, progress);
          if (status_.ok()) state.set_generator(host.generator());
          ended_ = true;
        }) {}
  ~Loading() { thread_.join(); }

  bool ended() const { return ended_; }
  const absl::Status& status() const { return status_; }  // once ended

 private:
  absl::Status status_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

absl::Status open_doors(const CoordinatorConfig& config, ServingState& state, Metrics& metrics,
                        std::unique_ptr<GrpcServer>* server) {
  if (!config.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(const int port, metrics.listen(config.metrics_listen, config.door.insecure));
    spdlog::info("metrics on port {}, path /metrics", port);
    RETURN_IF_ERROR(write_port_file(config.metrics_port_file, port, "--metrics-port-file"));
  }
  ASSIGN_OR_RETURN(*server, GrpcServer::start(config.door, &state, &metrics));
  if (config.door.insecure) spdlog::warn("--insecure: anybody who reaches the port may use it");
  spdlog::info("listening on {}", (*server)->address());
  return write_port_file(config.port_file, (*server)->port(), "--port-file");
}

// Waits for the first signal; false when loading failed before it.
bool wait_for_signal(const Loading& loading, ShutdownSignals& signals) {
  bool announced = false;
  while (true) {
    if (loading.ended() && !loading.status().ok()) return false;
    if (loading.ended() && !std::exchange(announced, true)) spdlog::info("the model is loaded");
    const absl::Duration tick = announced ? absl::Hours(1) : kTick;
    if (signals.wait_until(absl::Now() + tick)) return true;
  }
}

// Lets open streams finish within the grace time; a second signal ends it.
void drain(const CoordinatorConfig& config, GrpcServer& server, ShutdownSignals& signals) {
  const absl::Time deadline = absl::Now() + config.grace;
  spdlog::info("draining for at most {}", absl::FormatDuration(config.grace));
  while (!server.drain(absl::Now() + kTick)) {
    if (signals.wait_until(absl::Now())) {
      spdlog::warn("second signal: stopping at once");
      return;
    }
    if (absl::Now() >= deadline) {
      spdlog::warn("the grace time is over; open streams are cut");
      return;
    }
  }
  spdlog::info("all streams have finished");
}

}  // namespace

int run_coordinator(const CoordinatorConfig& config, ShutdownSignals& signals) {
  std::optional<TeardownGuard> guard;  // the last to go
  absl::StatusOr<std::unique_ptr<ModelHost>> host = open_host(config, signals);
  if (!host.ok()) return fail(host.status(), kUsageError);
  ServingState state;
  state.set_model((*host)->served());
  if (config.cluster.workers > 0) {
    state.set_cluster([host = host->get()] { return *host->cluster_status(); });
  }
  if ((*host)->draft_status().has_value()) {
    state.set_drafts([host = host->get()] { return *host->draft_status(); });
  }
  Metrics metrics(&state);
  std::unique_ptr<GrpcServer> server;
  if (const absl::Status opened = open_doors(config, state, metrics, &server); !opened.ok()) {
    return fail(opened, kUsageError);
  }
  Loading loading(config, **host, state);
  if (!wait_for_signal(loading, signals)) {
    guard.emplace(signals);
    server->stop();
    (*host)->dismiss_workers();
    return fail(loading.status(), kUsageError);
  }
  if (!loading.ended()) {
    (*host)->dismiss_workers();
    leave("the model was loading");
  }
  drain(config, *server, signals);
  guard.emplace(signals);
  server->stop();
  (*host)->stop();
  spdlog::info("stopped");
  return kOk;
}

}  // namespace brigade::runtime
