// A cluster of real processes on loopback: brigade-coordinator and expert workers, started by hand as
// an operator without a cluster file would. For tests of what only shows with processes. Every wait
// has a limit. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "launcher/client.h"
#include "tests/support/child_process.h"

namespace brigade::tests {

struct ProcessClusterOptions {
  std::string model;         // folder; empty: the demo model
  std::string worker_model;  // another one for the workers; empty: the same
  int workers = 2;    // 0: one process, no control port
  std::vector<std::string> coordinator_flags, worker_flags;  // appended
  // A killed worker is noticed at once; only a stopped one waits for this. Long enough that a busy
  // machine accuses nobody.
  absl::Duration heartbeat = absl::Milliseconds(100);
  absl::Duration lost_after = absl::Seconds(5);
};

class ProcessCluster {
 public:
  explicit ProcessCluster(const ProcessClusterOptions& options);
  ~ProcessCluster();

  // False with a note in `why()` when the process did not open its ports in time.
  bool start_coordinator();
  void start_worker(int index);
  // SIGKILL, and waits for its end.
  void kill_coordinator();
  void kill_worker(int index);
  bool start_all();  // the coordinator, then all workers, then wait_ready()

  ChildProcess* coordinator() { return coordinator_.get(); }
  ChildProcess* worker(int index) { return workers_[static_cast<size_t>(index)].get(); }
  int num_workers() const { return static_cast<int>(workers_.size()); }

  launcher::Client& client() { return *client_; }
  std::string address() const;
  std::string control_address() const;
  bool wait_ready(absl::Duration limit = absl::Seconds(60));
  // Every expert has a holder and so many workers are active.
  bool wait_whole(int active_workers, absl::Duration limit = absl::Seconds(30));
  absl::StatusOr<v1::GetStatusResponse> status();
  static int active_workers(const v1::GetStatusResponse& status);

  // A file beside the logs.
  std::string log_file(const std::string& name) const { return folder_ + "/" + name + ".log"; }
  std::string coordinator_log() const;
  std::string worker_log(int index) const;
  const std::string& why() const { return why_; }
  std::vector<std::string> worker_argv(int index) const;

 private:
  std::string model_folder() const;
  std::vector<std::string> coordinator_argv() const;

  const ProcessClusterOptions options_;
  std::string folder_;  // of logs and port files
  int port_ = 0, control_port_ = 0;  // kept over restarts of the coordinator
  std::string why_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<launcher::Client> client_;
};

}  // namespace brigade::tests
