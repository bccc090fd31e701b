#include "tests/support/process_cluster.h"

#include <stdlib.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/support/test_env.h"

namespace brigade::tests {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kCallLimit = absl::Seconds(5);
constexpr absl::Duration kStartLimit = absl::Seconds(60);  // on a busy machine, on an emulated GPU

std::string seconds(absl::Duration duration) { return absl::StrCat(absl::ToDoubleSeconds(duration)); }

std::string make_folder() {
  std::string path = testing::TempDir() + "/cluster_XXXXXX";
  return mkdtemp(path.data()) == nullptr ? std::string() : path;
}

}  // namespace

ProcessCluster::ProcessCluster(const ProcessClusterOptions& options)
    : options_(options), folder_(make_folder()), workers_(static_cast<size_t>(options.workers)) {}

ProcessCluster::~ProcessCluster() {
  for (auto& worker : workers_) {
    if (worker != nullptr) worker->signal(SIGCONT);  // a stopped one could not end
  }
  workers_.clear();
  coordinator_.reset();
  std::error_code ignored;
  if (!testing::Test::HasFailure()) std::filesystem::remove_all(folder_, ignored);
}

std::string ProcessCluster::model_folder() const {
  return options_.model.empty() ? source_dir() + "/models/demo/target" : options_.model;
}

std::vector<std::string> ProcessCluster::coordinator_argv() const {
  const std::string model = model_folder();
  std::vector<std::string> argv = {program_folder() + "/brigade-coordinator",
                                   "--model", model,
                                   "--listen", absl::StrCat("127.0.0.1:", port_),
                                   "--port-file", folder_ + "/port",
                                   "--metrics-listen", "",
                                   "--threads", "1",
                                   "--kv-memory", "32M"};
  if (options_.workers > 0) {
    const std::vector<std::string> cluster = {
        "--workers",           absl::StrCat(options_.workers),
        "--control-listen",    absl::StrCat("127.0.0.1:", control_port_),
        "--control-port-file", folder_ + "/control_port",
        "--heartbeat",         seconds(options_.heartbeat),
        "--lost-after",        seconds(options_.lost_after)};
    argv.insert(argv.end(), cluster.begin(), cluster.end());
  }
  argv.insert(argv.end(), options_.coordinator_flags.begin(), options_.coordinator_flags.end());
  return argv;
}

std::vector<std::string> ProcessCluster::worker_argv(int index) const {
  const std::string model = options_.worker_model.empty() ? model_folder() : options_.worker_model;
  std::vector<std::string> argv = {program_folder() + "/brigade-expert-worker",
                                   "--join", control_address(),
                                   "--model", model,
                                   "--name", absl::StrCat("worker-", index),
                                   "--threads", "1"};
  argv.insert(argv.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  return argv;
}

bool ProcessCluster::start_coordinator() {
  std::remove((folder_ + "/port").c_str());
  std::remove((folder_ + "/control_port").c_str());
  coordinator_ = std::make_unique<ChildProcess>(coordinator_argv(), folder_ + "/coordinator.log");
  port_ = std::atoi(wait_for_file(folder_ + "/port", kStartLimit).c_str());
  if (options_.workers > 0) {
    control_port_ = std::atoi(wait_for_file(folder_ + "/control_port", kStartLimit).c_str());
  }
  if (port_ == 0 || (options_.workers > 0 && control_port_ == 0)) {
    why_ = "the coordinator opened no ports:\n" + coordinator_log();
    return false;
  }
  auto client = launcher::Client::create({.server = address()});
  if (!client.ok()) {
    why_ = std::string(client.status().message());
    return false;
  }
  client_ = *std::move(client);
  return true;
}

void ProcessCluster::start_worker(int index) {
  workers_[static_cast<size_t>(index)] = std::make_unique<ChildProcess>(
      worker_argv(index), absl::StrCat(folder_, "/worker_", index, ".log"));
}

void ProcessCluster::kill_coordinator() {
  coordinator_->signal(SIGKILL);
  coordinator_->wait();
}

void ProcessCluster::kill_worker(int index) {
  worker(index)->signal(SIGKILL);
  worker(index)->wait();
}

bool ProcessCluster::start_all() {
  if (!start_coordinator()) return false;
  for (int i = 0; i < num_workers(); ++i) start_worker(i);
  if (wait_ready()) return true;
  why_ = "not ready:\n" + coordinator_log();
  for (int i = 0; i < num_workers(); ++i) why_ += "worker:\n" + worker_log(i);
  return false;
}

std::string ProcessCluster::address() const { return absl::StrCat("127.0.0.1:", port_); }
std::string ProcessCluster::control_address() const {
  return absl::StrCat("127.0.0.1:", control_port_);
}

bool ProcessCluster::wait_ready(absl::Duration limit) {
  for (const absl::Time deadline = absl::Now() + limit; absl::Now() < deadline;
       absl::SleepFor(kPoll)) {
    const auto now = status();
    if (now.ok() && now->ready()) return true;
  }
  return false;
}

bool ProcessCluster::wait_whole(int active, absl::Duration limit) {
  for (const absl::Time deadline = absl::Now() + limit; absl::Now() < deadline;
       absl::SleepFor(kPoll)) {
    const auto now = status();
    if (now.ok() && now->cluster().started() && now->cluster().parked_experts() == 0 &&
        active_workers(*now) == active) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<v1::GetStatusResponse> ProcessCluster::status() {
  return client_->status(absl::Now() + kCallLimit);
}

int ProcessCluster::active_workers(const v1::GetStatusResponse& status) {
  int count = 0;
  for (const v1::Worker& worker : status.cluster().workers()) count += worker.state() == "active";
  return count;
}

std::string ProcessCluster::coordinator_log() const { return read_file(folder_ + "/coordinator.log"); }
std::string ProcessCluster::worker_log(int index) const {
  return read_file(absl::StrCat(folder_, "/worker_", index, ".log"));
}

}  // namespace brigade::tests
