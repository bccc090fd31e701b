// brigade ps: the processes of a running cluster.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/supervisor/cluster_argument.h"
#include "launcher/supervisor/control_client.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kAnswerLimit = absl::Seconds(5);

struct PsFlags {
  std::string cluster;
  bool json = false;
};

std::string uptime_text(double seconds) {
  const int64_t whole = static_cast<int64_t>(seconds);
  if (whole < 60) return absl::StrFormat("%.1f s", seconds);
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

void print_table(const ControlAnswer& answer) {
  size_t name = 4, host = 4;
  for (const ProcessReport& report : answer.processes) {
    name = std::max(name, report.name.size());
    host = std::max(host, report.host.size());
  }
  const auto row = [&](const std::string& a, const std::string& b, const std::string& c,
                       const std::string& d, const std::string& e, const std::string& f,
                       const std::string& g, const std::string& h) {
    std::string line = absl::StrFormat("%-*s  %-13s  %-*s  %7s  %-11s  %-5s  %8s  %11s", name, a, b,
                                       host, c, d, e, f, g, h);
    std::printf("%s", line.c_str());
  };
  row("NAME", "ROLE", "HOST", "PID", "STATE", "READY", "RESTARTS", "UPTIME");
  std::printf("\n");
  for (const ProcessReport& report : answer.processes) {
    const bool runs = report.pid > 0;
    row(report.name, report.role, report.host, runs ? absl::StrCat(report.pid) : "-", report.state,
        report.ready ? "yes" : "no", absl::StrCat(report.restarts),
        runs ? uptime_text(report.uptime_seconds) : "-");
    std::printf("%s\n", report.detail.empty() ? "" : absl::StrCat("  ", report.detail).c_str());
  }
}

absl::Status run(const PsFlags& flags) {
  ASSIGN_OR_RETURN(const ClusterLocation cluster, locate_cluster(flags.cluster));
  RETURN_IF_ERROR(require_supervisor(cluster));
  ASSIGN_OR_RETURN(const ControlAnswer answer,
                   ask_supervisor(cluster.folder, {.verb = "ps"}, absl::Now() + kAnswerLimit));
  RETURN_IF_ERROR(answer.status);
  if (flags.json) {
    std::printf("%s\n", to_json(answer).c_str());
  } else {
    print_table(answer);
  }
  return absl::OkStatus();
}

}  // namespace

Verb add_ps_verb(CLI::App& root) {
  auto flags = std::make_shared<PsFlags>();
  CLI::App* app = root.add_subcommand("ps", "The processes of a cluster that brigade up started");
  app->add_option("CLUSTER", flags->cluster,
                  "Its name or its file; may be left out when one cluster is up");
  app->add_flag("--json", flags->json, "As JSON, with the address of the API");
  app->footer(
      "The pid of a process on another host is that of the remote shell here.\n\n"
      "Examples:\n  brigade ps\n  brigade ps demo --json | jq -r .api\n\n"
      "Exit codes: 0 fine, 1 the supervisor does not answer, 2 bad usage, 3 it is not up.");
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
