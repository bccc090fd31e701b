// What a cluster file makes `brigade up` start.
#include "launcher/supervisor/launch_plan.h"

#include "brigade/v1/cluster_file.pb.h"
#include "cluster_file/read_cluster_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace brigade::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::ClusterFile file_of(const std::string& yaml) {
  const auto reading = cluster_file::parse_cluster_file(yaml, "/c/cluster.yaml", nullptr);
  EXPECT_TRUE(reading.ok()) << reading.status();
  return reading.ok() ? reading->file : v1::ClusterFile();
}

PlanInputs inputs() {
  PlanInputs inputs;
  inputs.cluster_path = "/c/cluster.yaml";
  inputs.program_folder = "/bin";
  inputs.state_folder = "/run/demo";
  inputs.is_local = [](const v1::Host& host) { return host.name() != "far"; };
  return inputs;
}

constexpr const char* kTwoHosts = R"(
name: demo
model: {path: /m}
hosts:
- {name: near, address: 10.0.0.1}
- {name: far, address: 10.0.0.2}
workers:
- {name: a, count: 2}
- {name: b, host: far}
security: {insecure: true, data_plane: trusted_network}
timeouts: {grace: 7s}
launch:
  restart: {policy: always, first_delay: 1s, longest_delay: 9s, max_restarts: 4}
  ready_timeout: 30s
)";

TEST(LaunchPlan, ProcessesInOrderWithTheirFlags) {
  const auto plan = make_launch_plan(file_of(kTwoHosts), inputs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->processes.size(), 4u);
  const PlannedProcess& coordinator = plan->processes[0];
  EXPECT_EQ(coordinator.name, "coordinator");
  EXPECT_FALSE(coordinator.remote);
  EXPECT_THAT(coordinator.argv,
              ElementsAre("/bin/brigade-coordinator", "--cluster", "/c/cluster.yaml",
                          "--exit-on-stdin-eof", "--port-file", "/run/demo/coordinator.port",
                          "--control-port-file", "/run/demo/coordinator.control_port"));
  EXPECT_EQ(coordinator.grace, absl::Seconds(12)) << "the streams' and 5 s";
  EXPECT_EQ(plan->processes[1].name, "a-0");
  EXPECT_EQ(plan->processes[2].name, "a-1");
  const PlannedProcess& far = plan->processes[3];
  EXPECT_EQ(far.name, "b");
  EXPECT_EQ(far.host, "far");
  EXPECT_TRUE(far.remote);
  EXPECT_EQ(far.grace, absl::Seconds(12)) << "its experts go elsewhere";
  EXPECT_THAT(far.argv, ElementsAre("/bin/brigade-expert-worker", "--cluster", "/c/cluster.yaml",
                                    "--exit-on-stdin-eof", "--name", "b"));
  EXPECT_EQ(plan->api.text(), "10.0.0.1:50051");
  EXPECT_EQ(plan->control.text(), "10.0.0.1:50052");
  EXPECT_EQ(plan->restart.policy, RestartPolicy::kAlways);
  EXPECT_EQ(plan->restart.longest_delay, absl::Seconds(9));
  EXPECT_EQ(plan->restart.max_restarts, 4);
  EXPECT_EQ(plan->ready_timeout, absl::Seconds(30));
}

TEST(LaunchPlan, KnownPortsAndTheRemoteShellGoIntoTheCommand) {
  auto plan = make_launch_plan(file_of(kTwoHosts), inputs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  plan->api.port = 7001;
  plan->control.port = 7002;
  const PlannedProcess& coordinator = plan->processes[0];
  EXPECT_EQ(*start_command(*plan, coordinator, false), coordinator.argv);
  std::vector<std::string> again = coordinator.argv;
  again.insert(again.end(), {"--listen", "10.0.0.1:7001", "--control-listen", "10.0.0.1:7002"});
  EXPECT_EQ(*start_command(*plan, coordinator, true), again);
  EXPECT_THAT(*start_command(*plan, plan->processes[3], true),
              ElementsAre("ssh", "far",
                          "exec /bin/brigade-expert-worker --cluster /c/cluster.yaml "
                          "--exit-on-stdin-eof --name b --join 10.0.0.1:7002"));
}

TEST(LaunchPlan, ADraftWorkerNeedsTheControlPort) {
  const auto plan =
      make_launch_plan(file_of("model: {path: /m}\ndrafts: [{name: d, model: /d}]\n"), inputs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->processes.size(), 2u);
  EXPECT_EQ(plan->processes[0].control_port_file, "coordinator.control_port");
  EXPECT_EQ(workers_of(*plan), "0 workers, 1 draft worker");
  const PlannedProcess& draft = plan->processes[1];
  EXPECT_EQ(draft.role, Role::kDraft);
  EXPECT_THAT(draft.argv, ElementsAre("/bin/brigade-draft-worker", "--cluster", "/c/cluster.yaml",
                                      "--exit-on-stdin-eof", "--name", "d"));
  const auto command = start_command(*plan, draft, true);
  ASSERT_TRUE(command.ok()) << command.status();
  EXPECT_EQ((*command)[command->size() - 2], "--join");
}

TEST(LaunchPlan, WithoutWorkersNoControlPort) {
  const auto plan = make_launch_plan(file_of("model: {path: /m}\n"), inputs());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->cluster, "brigade");
  ASSERT_EQ(plan->processes.size(), 1u);
  EXPECT_EQ(plan->processes[0].control_port_file, "");
}

TEST(LaunchPlan, RemoteCoordinatorNeedsFixedPorts) {
  v1::ClusterFile file = file_of(kTwoHosts);
  file.mutable_coordinator()->set_host("far");
  EXPECT_TRUE(make_launch_plan(file, inputs()).ok());
  file.mutable_coordinator()->set_control_port(0);
  EXPECT_THAT(std::string(make_launch_plan(file, inputs()).status().message()),
              HasSubstr("coordinator.control_port is 0 (any free one), but the coordinator runs on "
                        "host \"far\""));
}

TEST(LaunchPlan, NamesAndShellsThatCannotWork) {
  v1::ClusterFile file = file_of(kTwoHosts);
  file.mutable_workers(1)->set_name("coordinator");
  EXPECT_THAT(std::string(make_launch_plan(file, inputs()).status().message()),
              HasSubstr("workers.name: two processes would be named \"coordinator\""));
  file = file_of(kTwoHosts);
  file.mutable_launch()->set_remote_shell("ssh 'x");
  EXPECT_THAT(std::string(make_launch_plan(file, inputs()).status().message()),
              HasSubstr("launch.remote_shell"));
}

}  // namespace
}  // namespace brigade::launcher
