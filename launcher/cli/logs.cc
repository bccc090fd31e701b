// brigade logs: what the processes of a cluster said.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/interrupt.h"
#include "launcher/supervisor/cluster_argument.h"
#include "launcher/supervisor/log_reader.h"
#include "launcher/supervisor/process_prefix.h"
#include "launcher/supervisor/state_folder.h"

namespace brigade::launcher {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);

struct LogsFlags {
  std::string cluster;
  std::vector<std::string> processes;
  int lines = 50;
  bool follow = false, times = false;
};

class Printer {
 public:
  Printer(const std::vector<std::string>& processes, bool times)
      : prefix_(processes, isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr),
        times_(times) {}

  // False when nobody reads.
  bool print(const std::vector<LogLine>& lines) const {
    for (const LogLine& line : lines) {
      const std::string text = times_ ? absl::StrCat(line.time, " ", line.text) : line.text;
      std::printf("%s\n", prefix_.put_before(line.process, text).c_str());
    }
    return std::fflush(stdout) == 0;
  }

 private:
  const ProcessPrefix prefix_;
  const bool times_;
};

absl::Status check_names(const ClusterLocation& cluster, const std::vector<std::string>& asked,
                         const std::vector<std::string>& known) {
  if (known.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cluster ", cluster.name, " has no logs in ", cluster.folder));
  }
  for (const std::string& name : asked) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no process \"", name, "\" in ", cluster.name,
                                                     "; there are ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

absl::Status run(const LogsFlags& flags) {
  ASSIGN_OR_RETURN(const ClusterLocation cluster, locate_cluster(flags.cluster));
  const std::vector<std::string> known = logged_processes(cluster.folder);
  RETURN_IF_ERROR(check_names(cluster, flags.processes, known));
  const std::vector<std::string>& names = flags.processes.empty() ? known : flags.processes;
  const Printer printer(names, flags.times);
  LogFollower follower(cluster.folder, names, /*from_beginning=*/false);
  bool read = printer.print(last_lines(cluster.folder, names, flags.lines));
  if (flags.follow) interrupt_flag();
  while (flags.follow && read && !interrupt_flag()) {
    const bool up = has_supervisor(cluster.folder);  // asked before the last read
    read = printer.print(follower.read());
    if (!up) break;
    absl::SleepFor(kInterval);
  }
  return absl::OkStatus();
}

}  // namespace

Verb add_logs_verb(CLI::App& root) {
  auto flags = std::make_shared<LogsFlags>();
  CLI::App* app =
      root.add_subcommand("logs", "What the processes of a cluster said, in the order it arrived");
  app->add_option("CLUSTER", flags->cluster,
                  "Its name or its file; may be left out when one cluster is up");
  app->add_option("PROCESS", flags->processes, "Only these; \"supervisor\" is brigade up itself");
  app->add_option("--lines,-n", flags->lines, "So many lines before now")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app->add_flag("--follow,-f", flags->follow, "Go on until the cluster is down or Ctrl-C");
  app->add_flag("--times,-t", flags->times, "With the time each line arrived");
  app->footer(
      "Logs stay after the cluster is down, until it is up again. Each process keeps its last "
      "three\n"
      "files of 16 MiB.\n\n"
      "Examples:\n  brigade logs -f\n  brigade logs demo worker-0 -n 200 --times\n\n"
      "Exit codes: 0 fine, 2 bad usage, 3 there are no logs.");
  return {app, [flags] { return report(run(*flags)); }};
}

}  // namespace brigade::launcher
