// What the settings of both kinds of workers have in common: how the process joins a coordinator,
// what it loads, on what it computes. Data and checks; made before any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/device/device_settings.h"
#include "runtime/joining/dial.h"

namespace brigade::v1 {
class ClusterFile;
}

namespace brigade::runtime {

struct WorkerSettings {
  std::string cluster_file;  // says everything for the worker `name`; flags win over it
  std::string name;          // empty: host and process id
  std::string model;         // folder of a checkpoint
  DialOptions dial;
  bool insecure = false;  // dial another host without TLS and token
  DeviceSettings device;
  int threads = 0;  // 0: one a core
  absl::Duration rejoin_timeout = absl::Minutes(10);
  bool exit_on_stdin_eof = false;
};

// INVALID_ARGUMENT names the flag. Fills in threads and name. `model` for sentences, such as "a
// dense model". True: the coordinator is on this host.
absl::StatusOr<bool> check_worker(const std::string& model, WorkerSettings* settings);

// What the file says to every worker on `host`, a name in the file; its device is known.
// `token_file` is that of its kind.
void take_cluster_file(const v1::ClusterFile& file, const std::string& host,
                       const std::string& token_file, WorkerSettings* settings);

// INVALID_ARGUMENT: --name is missing, or none of `names`. `kind`: "worker" or "draft".
absl::Status no_such_name(const WorkerSettings& settings, const std::string& kind,
                          const std::vector<std::string>& names);

// One line a setting.
std::string describe_worker(const WorkerSettings& settings);

}  // namespace brigade::runtime
