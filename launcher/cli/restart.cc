// brigade restart: one process of a running cluster, in order.
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/interrupt.h"
#include "launcher/supervisor/cluster_argument.h"
#include "launcher/supervisor/control_client.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kAnswerLimit = absl::Seconds(5);
constexpr absl::Duration kInterval = absl::Milliseconds(50);

struct RestartFlags {
  std::string cluster, process;
  double timeout_seconds = 120;
};

absl::StatusOr<ControlAnswer> ask(const ClusterLocation& cluster, const ControlRequest& request) {
  ASSIGN_OR_RETURN(ControlAnswer answer,
                   ask_supervisor(cluster.folder, request, absl::Now() + kAnswerLimit));
  RETURN_IF_ERROR(answer.status);
  return answer;
}

const ProcessReport* find(const ControlAnswer& answer, const std::string& name) {
  for (const ProcessReport& report : answer.processes) {
    if (report.name == name) return &report;
  }
  return nullptr;
}

absl::Status run(const RestartFlags& flags) {
  ASSIGN_OR_RETURN(const ClusterLocation cluster, locate_cluster(flags.cluster));
  RETURN_IF_ERROR(require_supervisor(cluster));
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(const ControlAnswer before, ask(cluster, {.verb = "ps"}));
  const ProcessReport* old = find(before, flags.process);
  RETURN_IF_ERROR(ask(cluster, {.verb = "restart", .process = flags.process}).status());
  const int64_t old_starts = old == nullptr ? 0 : old->starts;
  std::string detail = "it has not ended";
  while (absl::Now() < begin + absl::Seconds(flags.timeout_seconds)) {
    if (interrupt_flag()) return absl::CancelledError("interrupted; the restart goes on");
    ASSIGN_OR_RETURN(const ControlAnswer now, ask(cluster, {.verb = "ps"}));
    const ProcessReport* process = find(now, flags.process);
    if (process != nullptr && process->starts > old_starts) {
      if (process->ready) {
        std::printf("%s runs again and is ready (pid %lld, %.1f s)\n", process->name.c_str(),
                    static_cast<long long>(process->pid),
                    absl::ToDoubleSeconds(absl::Now() - begin));
        return absl::OkStatus();
      }
      if (process->state == to_string(ProcessState::kFailed)) {
        return absl::AbortedError(process->detail);
      }
      detail = absl::StrCat(process->state, " ", process->detail);
    }
    absl::SleepFor(kInterval);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(flags.process, " is not ready after ", flags.timeout_seconds, " s: ", detail));
}

}  // namespace

Verb add_restart_verb(CLI::App& root) {
  auto flags = std::make_shared<RestartFlags>();
  CLI::App* app = root.add_subcommand("restart", "End one process in order and start it again");
  app->add_option("CLUSTER", flags->cluster, "Name or file of a cluster that is up")->required();
  app->add_option("PROCESS", flags->process, "As brigade ps names it")->required();
  app->add_option("--timeout", flags->timeout_seconds, "Seconds until it must be ready again")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->footer(
      "A worker hands its experts to the others and takes some again once it is back; streams go "
      "on.\n"
      "The coordinator finishes its streams and takes its workers along.\n\n"
      "Example:\n  brigade restart demo worker-0\n\n"
      "Exit codes: 0 it is ready again, 1 it is not, 2 bad usage, 3 the cluster is not up,\n"
      "4 interrupted.");
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
