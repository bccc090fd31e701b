// The scripts of deploy/: what they make is accepted, what they would start is what we take. srun
// and scontrol are stubs that write down how they were called.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cluster_file/read_cluster_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/api/access_tokens.h"
#include "runtime/api/certificate_check.h"
#include "tests/support/program_flags.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string deploy(const std::string& path) { return source_dir() + "/deploy/" + path; }

std::string read_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void write_program(const std::string& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/bash\n" << text;
  fs::permissions(path, fs::perms::owner_all);
}

TEST(DeployScriptsTest, SecretsAreWhatTheServerWants) {
  const TempFolder folder;
  const std::string secrets = folder.path() + "secrets";
  const CommandResult made =
      run_shell(deploy("make_secrets.sh") + " " + secrets + " node-a 127.0.0.1 ::1");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  const auto in = [&](const std::string& name) { return secrets + "/" + name; };
  EXPECT_TRUE(
      runtime::check_key_and_certificate(in("coordinator.key"), in("coordinator.pem")).ok());
  EXPECT_TRUE(runtime::check_key_and_certificate(in("peer.key"), in("peer.pem")).ok());
  EXPECT_TRUE(runtime::check_authorities(in("ca.pem"), "ca").ok());
  const auto tokens = runtime::AccessTokens::read(
      {in("client.token"), in("operator.token"), in("worker.token"), in("draft.token")});
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  const CommandResult names =
      run_shell("openssl x509 -noout -ext subjectAltName -in " + in("coordinator.pem"));
  EXPECT_THAT(names.output,
              HasSubstr("DNS:node-a, IP Address:127.0.0.1, IP Address:0:0:0:0:0:0:0:1"));
  for (const char* signed_by_ca : {"coordinator.pem", "peer.pem"}) {
    EXPECT_EQ(
        run_shell("openssl verify -CAfile " + in("ca.pem") + " " + in(signed_by_ca)).exit_code, 0);
  }
  for (const auto& entry : fs::directory_iterator(secrets)) {
    EXPECT_EQ(entry.status().permissions() & (fs::perms::group_all | fs::perms::others_all),
              fs::perms::none)
        << entry.path();
  }
  EXPECT_NE(run_shell(deploy("make_secrets.sh") + " " + secrets + " a").exit_code, 0)
      << "what is there is not overwritten";
}

class SlurmTest : public testing::Test {
 protected:
  // The job on `nodes`; the coordinator's srun ends with `exit_code` once every worker was started.
  CommandResult run_job(const std::vector<std::string>& nodes, size_t workers, int exit_code,
                        const std::string& settings = "") {
    const std::string bin = folder_.path() + "bin/";
    fs::create_directory(bin);
    std::string listing;
    for (const std::string& node : nodes) listing += "echo " + node + "\n";
    write_program(bin + "scontrol", listing);
    // One write a call, so that lines of two calls do not mix.
    write_program(bin + "srun", R"bash(
text=$(printf '%s\n' "$@")
printf '%s\n\n' "$text" >>"$STUB_LOG"
case "$text" in *brigade-coordinator*)
  for ((i = 0; i < 1000; ++i)); do
    [ "$(grep -c brigade-expert-worker "$STUB_LOG")" -ge "$STUB_WORKERS" ] && exit "$STUB_EXIT"
    sleep 0.01
  done
  exit 99 ;;
esac
)bash");
    return run_shell(
        "cd " + folder_.path() + " && PATH=" + bin + ":$PATH STUB_LOG=" + log_ +
        " STUB_WORKERS=" + std::to_string(workers) + " STUB_EXIT=" + std::to_string(exit_code) +
        " " + settings + " SLURM_JOB_ID=7" +
        " SLURM_JOB_NODELIST=n SLURM_CPUS_PER_TASK=4 SLURM_SUBMIT_DIR=" + source_dir() +
        " BRIGADE_STATE=" + folder_.path() + "state BRIGADE_BIN=" + BRIGADE_PROGRAMS +
        " timeout 50 bash " + deploy("slurm/brigade.sbatch") + " " + source_dir() +
        "/models/demo/target");
  }

  // What srun was told to run, by node.
  std::multimap<std::string, std::vector<std::string>> started() const {
    std::multimap<std::string, std::vector<std::string>> commands;
    std::ifstream lines(log_);
    std::string node;
    std::vector<std::string> command;
    for (std::string line; std::getline(lines, line);) {
      const std::string flag = "--nodelist=";
      if (line.empty()) {
        commands.emplace(node, std::exchange(command, {}));
      } else if (line.starts_with(flag)) {
        node = line.substr(flag.size());
      } else if (!command.empty() || line[0] == '/') {
        command.push_back(line);
      }
    }
    return commands;
  }

  const TempFolder folder_;
  const std::string log_ = folder_.path() + "log";
};

TEST_F(SlurmTest, ParsesAsBash) {
  for (const char* script : {"slurm/brigade.sbatch", "make_secrets.sh"}) {
    const CommandResult parsed = run_shell("bash -n " + deploy(script));
    EXPECT_EQ(parsed.exit_code, 0) << parsed.output;
  }
}

TEST_F(SlurmTest, DryRunOnThreeNodes) {
  const CommandResult job = run_job({"node-a", "node-b", "node-c"}, 2, 0);
  EXPECT_EQ(job.exit_code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("3 processes on 3 hosts")) << "brigade validate has run";
  const auto commands = started();
  ASSERT_EQ(commands.size(), 3) << read_text(log_);
  for (const auto& [node, words] : commands) {
    EXPECT_TRUE(takes_flags(words)) << node;
    const bool first = node == "node-a";
    EXPECT_THAT(words[0],
                testing::EndsWith(first ? "/brigade-coordinator" : "/brigade-expert-worker"));
    if (!first) {
      EXPECT_EQ(words.back(), "worker-" + node);
    }
  }
  const auto reading = cluster_file::read_cluster_file(folder_.path() + "state/cluster.yaml");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->file.coordinator().threads(), 4);
  EXPECT_EQ(reading->file.security().data_plane(), v1::DATA_PLANE_TRUSTED_NETWORK);
}

// A GPU for each process; every step sees the node's GPUs, and its own is the one of the cluster
// file.
TEST_F(SlurmTest, DryRunWithTwoGpusOnTwoNodes) {
  const CommandResult job = run_job({"node-a", "node-b"}, 3, 0, "SLURM_GPUS_PER_NODE=h100:2");
  EXPECT_EQ(job.exit_code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("4 processes on 2 hosts"));
  EXPECT_EQ(started().count("node-a"), 2) << read_text(log_);
  EXPECT_EQ(started().count("node-b"), 2) << read_text(log_);
  EXPECT_THAT(read_text(log_), HasSubstr("--gpus-per-node=2"));
  const auto reading = cluster_file::read_cluster_file(folder_.path() + "state/cluster.yaml");
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_EQ(reading->file.coordinator().device(), "cuda:1");
  std::map<std::string, std::string> devices;
  for (const auto& worker : reading->file.workers()) {
    devices[worker.name()] = worker.host() + " " + worker.device();
    EXPECT_EQ(worker.threads(), 2) << "the node's 4 cores are shared by its workers";
  }
  EXPECT_EQ(devices, (std::map<std::string, std::string>{{"worker-node-a-0", "node-a cuda:0"},
                                                         {"worker-node-b-0", "node-b cuda:0"},
                                                         {"worker-node-b-1", "node-b cuda:1"}}));
}

TEST_F(SlurmTest, TheOnlyGpuIsShared) {
  const CommandResult job = run_job({"node-a"}, 1, 0, "SLURM_GPUS_PER_NODE=1");
  EXPECT_EQ(job.exit_code, 0) << job.output;
  EXPECT_THAT(job.output, HasSubstr("data plane host"));
  EXPECT_EQ(started().count("node-a"), 2) << read_text(log_);
}

TEST_F(SlurmTest, OneNodeHasBothAndTheCoordinatorsExitCodeIsTheJobs) {
  const CommandResult job = run_job({"node-a"}, 1, 3);
  EXPECT_EQ(job.exit_code, 3) << job.output;
  EXPECT_EQ(started().count("node-a"), 2) << read_text(log_);
}

}  // namespace
}  // namespace brigade::tests
