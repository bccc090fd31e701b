#include "launcher/supervisor/launch_plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/cluster_layout.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "launcher/supervisor/remote_command.h"

namespace brigade::launcher {
namespace {

using cluster_file::to_duration;

constexpr const char* kCoordinatorName = "coordinator";
// On top of the time the file gives a process that is asked to end: a coordinator's open streams, a
// worker's experts that go elsewhere.
constexpr absl::Duration kGraceMargin = absl::Seconds(5);

class Planner {
 public:
  Planner(const v1::ClusterFile& file, const PlanInputs& inputs) : file_(file), inputs_(inputs) {}

  absl::StatusOr<LaunchPlan> plan() {
    plan_.cluster = file_.name();
    const v1::Launch& launch = file_.launch();
    plan_.remote_shell = launch.remote_shell();
    plan_.ready_timeout = to_duration(launch.ready_timeout());
    plan_.restart = restart_rules(launch.restart());
    programs_ = launch.program_folder().empty() ? inputs_.program_folder : launch.program_folder();
    plan_.ca = file_.security().tls().ca();
    plan_.cert = file_.security().tls().peer_cert();
    plan_.key = file_.security().tls().peer_key();
    const v1::Tokens& tokens = file_.security().tokens();
    plan_.token_file = tokens.operator_().empty() ? tokens.client() : tokens.operator_();
    RETURN_IF_ERROR(add_coordinator());
    for (const auto& worker : cluster_file::expanded_workers(file_)) {
      RETURN_IF_ERROR(add_worker(worker.name, worker.host, Role::kWorker, "brigade-expert-worker"));
    }
    for (const v1::DraftRole& draft : file_.drafts()) {
      RETURN_IF_ERROR(add_worker(draft.name(), draft.host(), Role::kDraft, "brigade-draft-worker"));
    }
    return std::move(plan_);
  }

 private:
  static RestartRules restart_rules(const v1::Restart& restart) {
    RestartRules rules;
    if (restart.policy() == v1::RESTART_POLICY_NEVER) rules.policy = RestartPolicy::kNever;
    if (restart.policy() == v1::RESTART_POLICY_ALWAYS) rules.policy = RestartPolicy::kAlways;
    rules.first_delay = to_duration(restart.first_delay());
    rules.longest_delay = to_duration(restart.longest_delay());
    rules.max_restarts = static_cast<int>(restart.max_restarts());
    return rules;
  }

  // What all processes have in common.
  PlannedProcess process_on(const std::string& host_name) const {
    const v1::Host* host = cluster_file::find_host(file_, host_name);
    CHECK(host != nullptr);  // the loader's rule
    PlannedProcess process;
    process.host = host->name();
    process.address = host->address();
    process.remote = !inputs_.is_local(*host);
    process.grace = to_duration(file_.timeouts().grace()) + kGraceMargin;
    return process;
  }

  std::vector<std::string> common_argv(const std::string& program) const {
    return {absl::StrCat(programs_, "/", program), "--cluster", inputs_.cluster_path,
            "--exit-on-stdin-eof"};
  }

  absl::Status add_coordinator() {
    const v1::CoordinatorRole& role = file_.coordinator();
    PlannedProcess process = process_on(role.host());
    process.name = kCoordinatorName;
    process.role = Role::kCoordinator;
    process.argv = common_argv("brigade-coordinator");
    plan_.listen_host = role.listen_address();
    plan_.api = {process.address, static_cast<int>(role.port())};
    plan_.control = {process.address, static_cast<int>(role.control_port())};
    const bool has_joiners = cluster_file::has_joiners(file_);
    if (process.remote) {
      RETURN_IF_ERROR(check_fixed(plan_.api.port, "port", process.host));
      if (has_joiners)
        RETURN_IF_ERROR(check_fixed(plan_.control.port, "control_port", process.host));
    } else {
      process.port_file = "coordinator.port";
      process.argv.insert(process.argv.end(),
                          {"--port-file", absl::StrCat(inputs_.state_folder, "/coordinator.port")});
      if (has_joiners) {
        process.control_port_file = "coordinator.control_port";
        process.argv.insert(process.argv.end(),
                            {"--control-port-file",
                             absl::StrCat(inputs_.state_folder, "/coordinator.control_port")});
      }
    }
    return add(std::move(process));
  }

  static absl::Status check_fixed(int port, const char* key, const std::string& host) {
    if (port != 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "coordinator.", key, " is 0 (any free one), but the coordinator runs on host \"", host,
        "\", from where its port cannot be read: set a port"));
  }

  absl::Status add_worker(const std::string& name, const std::string& host, Role role,
                          const char* program) {
    PlannedProcess process = process_on(host);
    process.name = name;
    process.role = role;
    process.argv = common_argv(program);
    process.argv.insert(process.argv.end(), {"--name", process.name});
    return add(std::move(process));
  }

  absl::Status add(PlannedProcess process) {
    if (!names_.insert(process.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("workers.name: two processes would be named \"", process.name, "\""));
    }
    RETURN_IF_ERROR(start_command(plan_, process, true).status());
    plan_.processes.push_back(std::move(process));
    return absl::OkStatus();
  }

  const v1::ClusterFile& file_;
  const PlanInputs& inputs_;
  std::string programs_;
  std::set<std::string> names_;
  LaunchPlan plan_;
};

}  // namespace

std::string workers_of(const LaunchPlan& plan) {
  const auto count = [&plan](Role role) {
    return std::count_if(plan.processes.begin(), plan.processes.end(),
                         [role](const PlannedProcess& process) { return process.role == role; });
  };
  const auto workers = count(Role::kWorker), drafts = count(Role::kDraft);
  std::string text = absl::StrCat(workers, workers == 1 ? " worker" : " workers");
  if (drafts > 0) {
    absl::StrAppend(&text, ", ", drafts, drafts == 1 ? " draft worker" : " draft workers");
  }
  return text;
}

const char* to_string(Role role) {
  switch (role) {
    case Role::kCoordinator:
      return "coordinator";
    case Role::kWorker:
      return "expert worker";
    case Role::kDraft:
      break;
  }
  return "draft worker";
}

std::string Endpoint::text() const { return cluster_file::with_port(host, port); }

absl::StatusOr<LaunchPlan> make_launch_plan(const v1::ClusterFile& file, const PlanInputs& inputs) {
  return Planner(file, inputs).plan();
}

absl::StatusOr<std::vector<std::string>> start_command(const LaunchPlan& plan,
                                                       const PlannedProcess& process,
                                                       bool ports_known) {
  std::vector<std::string> argv = process.argv;
  if (ports_known && process.role != Role::kCoordinator) {
    argv.insert(argv.end(), {"--join", plan.control.text()});
  }
  if (ports_known && !process.port_file.empty()) {
    argv.insert(argv.end(), {"--listen", Endpoint{plan.listen_host, plan.api.port}.text()});
  }
  if (ports_known && !process.control_port_file.empty()) {
    argv.insert(argv.end(),
                {"--control-listen", Endpoint{plan.listen_host, plan.control.port}.text()});
  }
  if (!process.remote) return argv;
  return remote_command(plan.remote_shell, {process.host, process.address}, argv);
}

}  // namespace brigade::launcher
