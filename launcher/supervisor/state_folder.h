// The folder of one running cluster: lock, supervisor's identity, control socket, port files, logs
// and the identities of the processes it started. Only its owner may enter it. The lock lives as
// long as the supervisor, however it dies.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/supervisor/process_identity.h"

namespace brigade::launcher {

// $XDG_RUNTIME_DIR/brigade, or /tmp/brigade-UID where that is not set.
std::string default_state_root();

// `configured` (launch.state_folder) or the default root's folder for the name. INVALID_ARGUMENT
// for a name that is no folder name.
absl::StatusOr<std::string> state_folder_path(const std::string& cluster,
                                              const std::string& configured = "");

// Names in the default root whose supervisor runs.
std::vector<std::string> running_clusters();

// Read side: what any `brigade` may ask about a folder.
bool has_supervisor(const std::string& folder);  // somebody holds its lock
std::optional<ProcessIdentity> supervisor_of(const std::string& folder);
std::string control_socket_path(const std::string& folder);
std::string log_path(const std::string& folder, const std::string& process);
std::vector<std::string> logged_processes(const std::string& folder);  // by name

// Kills the processes that a dead supervisor left, waits for them until `deadline`, and removes
// what else it left except logs. Returns the number of processes killed. Only without a supervisor.
int clean_leftovers(const std::string& folder, absl::Time deadline);

class StateFolder {
 public:
  // Makes and locks the folder. FAILED_PRECONDITION when a supervisor holds it; INVALID_ARGUMENT
  // names a folder that cannot be used or that others may enter. *note: a sentence about what a
  // dead supervisor left, or empty.
  static absl::StatusOr<StateFolder> acquire(const std::string& folder, std::string* note);

  StateFolder(StateFolder&& other) noexcept;
  StateFolder& operator=(StateFolder&&) = delete;
  ~StateFolder();  // closes the lock

  const std::string& path() const { return path_; }

  // This process is the supervisor now; again after a fork.
  absl::Status write_supervisor();
  void write_process(const std::string& name, pid_t pid);
  void remove_process(const std::string& name);
  // In order: nothing but logs stays.
  void remove_all_but_logs();

 private:
  StateFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  int lock_ = -1;
};

}  // namespace brigade::launcher
