// brigade up: starts a cluster from its file and watches over it.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "cluster_file/read_cluster_file.h"
#include "kernels/core/status.h"
#include "launcher/cli/own_folder.h"
#include "launcher/cli/verb.h"
#include "launcher/exit_codes.h"
#include "launcher/supervisor/launch_plan.h"
#include "launcher/supervisor/up_session.h"

namespace brigade::launcher {
namespace {

struct UpFlags {
  std::string file;
  bool detach = false, no_color = false;
  double timeout_seconds = 0;  // 0: the file's
};

absl::Status check_programs(const LaunchPlan& plan) {
  for (const PlannedProcess& process : plan.processes) {
    const std::string& program = process.argv.front();
    if (!process.remote && access(program.c_str(), X_OK) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(process.name, ": there is no program ",
                                                     program, " (see launch.program_folder)"));
    }
  }
  return absl::OkStatus();
}

absl::Status start(const UpFlags& flags, const cluster_file::Reading& reading) {
  PlanInputs inputs;
  inputs.cluster_path = std::filesystem::absolute(flags.file).lexically_normal().string();
  inputs.program_folder = own_folder();
  ASSIGN_OR_RETURN(inputs.state_folder,
                   state_folder_path(reading.file.name(), reading.file.launch().state_folder()));
  inputs.is_local = [](const v1::Host& host) {
    return cluster_file::this_machine().is_here(host.address());
  };
  ASSIGN_OR_RETURN(LaunchPlan plan, make_launch_plan(reading.file, inputs));
  if (flags.timeout_seconds > 0) plan.ready_timeout = absl::Seconds(flags.timeout_seconds);
  RETURN_IF_ERROR(check_programs(plan));
  std::string note;
  ASSIGN_OR_RETURN(StateFolder folder, StateFolder::acquire(inputs.state_folder, &note));
  if (!note.empty()) std::fprintf(stderr, "brigade: note: %s\n", note.c_str());
  const UpOptions options = {.color = !flags.no_color && std::getenv("NO_COLOR") == nullptr,
                             .stream_logs = !flags.detach};
  if (flags.detach) return run_cluster_detached(plan, folder, options);
  return run_cluster(plan, folder, options, [] {});
}

int run(const UpFlags& flags) {
  const auto reading = cluster_file::read_cluster_file(flags.file);
  if (!reading.ok()) {  // one line a fault, as brigade validate prints them
    std::fprintf(stderr, "%s\n", std::string(reading.status().message()).c_str());
    return kBadUsage;
  }
  for (const std::string& note : reading->notes) {
    std::fprintf(stderr, "%s: note: %s\n", flags.file.c_str(), note.c_str());
  }
  return report(start(flags, *reading));
}

}  // namespace

Verb add_up_verb(CLI::App& root) {
  auto flags = std::make_shared<UpFlags>();
  CLI::App* app = root.add_subcommand(
      "up", "Start the processes of a cluster file, wait until they serve, watch over them");
  app->add_option("FILE", flags->file, "Cluster file; checked before anything starts")->required();
  app->add_flag("--detach,-d", flags->detach,
                "Return once everything is up; end it with brigade down");
  app->add_option("--timeout", flags->timeout_seconds,
                  "Seconds until everything must be up; default: launch.ready_timeout of the file")
      ->check(CLI::PositiveNumber);
  app->add_flag("--no-color", flags->no_color, "No colors (as with NO_COLOR in the environment)");
  app->footer(
      "Without --detach the logs of all processes follow, each line behind its process's name.\n"
      "Ctrl-C ends the cluster in order: the coordinator finishes its streams and dismisses its\n"
      "workers, then the workers end. A second Ctrl-C ends everything at once. If this program is\n"
      "killed, its processes end too.\n\n"
      "Hosts whose address is not this machine's are reached through launch.remote_shell; program\n"
      "and cluster file must lie at the same paths there.\n\n"
      "Examples:\n"
      "  brigade up deploy/configs/one_host_cpu.yaml\n"
      "  brigade up --detach --timeout 60 cluster.yaml && brigade ps\n\n"
      "Exit codes: 0 it was up and ended in order (with --detach: it is up), 1 a process failed "
      "or\n"
      "not everything was up in time, 2 bad usage or cluster file, 4 interrupted before it was "
      "up.");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace brigade::launcher
