// What `brigade up` starts: the processes of a cluster file in their order, with command lines and
// rules. Made by a pure function; data afterwards.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/supervisor/restart_schedule.h"

namespace brigade::v1 {
class ClusterFile;
class Host;
}  // namespace brigade::v1

namespace brigade::launcher {

enum class Role { kCoordinator, kWorker, kDraft };
const char* to_string(Role role);

// An address whose port may still be unknown.
struct Endpoint {
  std::string host;
  int port = 0;  // 0: any free one, read from the port file once it is open

  std::string text() const;  // "host:port", "[::1]:port"
};

struct PlannedProcess {
  std::string name;  // "coordinator", or the worker's
  Role role = Role::kWorker;
  std::string host, address;  // its name in the file, and where the others reach it
  bool remote = false;
  std::vector<std::string> argv;  // the program and its flags, before any remote shell
  // Names in the state folder; empty: none is written.
  std::string port_file, control_port_file;
  absl::Duration grace;  // from the request to stop until it is killed
};

struct LaunchPlan {
  std::string cluster;
  // The coordinator first; the others are started once it has opened its ports.
  std::vector<PlannedProcess> processes;
  RestartRules restart;
  absl::Duration ready_timeout;
  std::string remote_shell;
  Endpoint api, control;    // where clients and workers dial
  std::string listen_host;  // of the coordinator
  // What this program shows to the coordinator when it asks whether it is ready.
  std::string ca, cert, key, token_file;
};

struct PlanInputs {
  std::string cluster_path;                       // absolute, handed to every process
  std::string program_folder;                     // where launch.program_folder is absent
  std::string state_folder;                       // for port files
  std::function<bool(const v1::Host&)> is_local;  // this machine
};

// `file` as its loader returns it: checked, defaults filled in. INVALID_ARGUMENT names the key of a
// combination that cannot be launched.
absl::StatusOr<LaunchPlan> make_launch_plan(const v1::ClusterFile& file, const PlanInputs& inputs);

// Beside the coordinator: "2 workers, 1 draft worker".
std::string workers_of(const LaunchPlan& plan);

// The command line that starts a process of the plan from here, remote shell included. With
// `ports_known` the plan's ports go along, so that a coordinator that starts again is found by its
// clients and workers. Never fails for a process of a plan that make_launch_plan() returned.
absl::StatusOr<std::vector<std::string>> start_command(const LaunchPlan& plan,
                                                       const PlannedProcess& process,
                                                       bool ports_known);

}  // namespace brigade::launcher
