// brigade down: ends a cluster in order, and with force where that does not work.
#include <csignal>
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
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kAnswerLimit = absl::Seconds(3);
constexpr absl::Duration kKillLimit = absl::Seconds(5);
constexpr absl::Duration kInterval = absl::Milliseconds(20);

struct DownFlags {
  std::string cluster;
  double timeout_seconds = -1;  // below 0: what the cluster's own grace times allow
  bool now = false;
};

// False at the deadline or when interrupted.
bool wait_until_gone(const std::string& folder, absl::Time deadline) {
  while (has_supervisor(folder)) {
    if (absl::Now() >= deadline || interrupt_flag()) return false;
    absl::SleepFor(kInterval);
  }
  return true;
}

absl::Status end_by_force(const ClusterLocation& cluster, bool answers) {
  const auto supervisor = supervisor_of(cluster.folder);
  if (answers &&
      ask_supervisor(cluster.folder, {.verb = "kill"}, absl::Now() + kAnswerLimit).ok() &&
      wait_until_gone(cluster.folder, absl::Now() + kKillLimit)) {
    return absl::OkStatus();
  }
  std::fprintf(stderr, "the supervisor does not end and is killed\n");
  if (supervisor) signal_process(*supervisor, SIGKILL);
  if (!wait_until_gone(cluster.folder, absl::Now() + kKillLimit)) {
    return absl::DeadlineExceededError(
        absl::StrCat("the supervisor of ", cluster.name, " does not end, not even killed"));
  }
  clean_leftovers(cluster.folder, absl::Now() + kKillLimit);
  return absl::OkStatus();
}

absl::Status clean_after_death(const ClusterLocation& cluster) {
  if (!supervisor_of(cluster.folder)) return require_supervisor(cluster);
  const int killed = clean_leftovers(cluster.folder, absl::Now() + kKillLimit);
  std::printf("the supervisor of %s was dead already; killed %d processes it had left\n",
              cluster.name.c_str(), killed);
  return absl::OkStatus();
}

absl::Status run(const DownFlags& flags) {
  ASSIGN_OR_RETURN(const ClusterLocation cluster, locate_cluster(flags.cluster));
  if (!has_supervisor(cluster.folder)) return clean_after_death(cluster);
  interrupt_flag();
  const absl::Time begin = absl::Now();
  bool answers = true;
  if (!flags.now) {
    const auto answer =
        ask_supervisor(cluster.folder, {.verb = "down"}, absl::Now() + kAnswerLimit);
    absl::Time deadline = absl::Now();
    answers = answer.ok();
    if (!answers) {
      std::fprintf(stderr, "%s\n", std::string(answer.status().message()).c_str());
    } else {
      deadline = begin + (flags.timeout_seconds >= 0
                              ? absl::Seconds(flags.timeout_seconds)
                              : absl::Seconds(answer->stop_limit_seconds) + kAnswerLimit);
    }
    if (wait_until_gone(cluster.folder, deadline)) {
      std::printf("%s is down (%.1f s)\n", cluster.name.c_str(),
                  absl::ToDoubleSeconds(absl::Now() - begin));
      return absl::OkStatus();
    }
    if (interrupt_flag()) {
      return absl::CancelledError(absl::StrCat(cluster.name, " goes on ending in order"));
    }
    std::fprintf(stderr, "%s did not end in time; ending it at once\n", cluster.name.c_str());
  }
  RETURN_IF_ERROR(end_by_force(cluster, answers));
  std::printf("%s is down, by force\n", cluster.name.c_str());
  return absl::OkStatus();
}

}  // namespace

Verb add_down_verb(CLI::App& root) {
  auto flags = std::make_shared<DownFlags>();
  CLI::App* app = root.add_subcommand("down", "End a cluster that brigade up started");
  app->add_option("CLUSTER", flags->cluster,
                  "Its name or its file; may be left out when one cluster is up");
  app->add_option("--timeout", flags->timeout_seconds,
                  "Seconds for an ordered end, then by force; default: the cluster's grace times")
      ->check(CLI::NonNegativeNumber);
  app->add_flag("--now", flags->now, "By force at once; open streams break");
  app->footer(
      "In order: the coordinator takes no new requests, finishes its streams and dismisses its\n"
      "workers; then the workers end.\n\n"
      "Examples:\n  brigade down\n  brigade down demo --timeout 10\n  brigade down cluster.yaml\n\n"
      "Exit codes: 0 nothing of it runs any more, 1 it could not be ended, 2 bad usage, 3 it was "
      "not\n"
      "up, 4 interrupted.");
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
