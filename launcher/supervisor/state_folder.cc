#include "launcher/supervisor/state_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"

namespace brigade::launcher {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNameLength = 64;

std::string supervisor_path(const std::string& folder) { return folder + "/supervisor"; }
std::string processes_path(const std::string& folder) { return folder + "/processes"; }
std::string logs_path(const std::string& folder) { return folder + "/logs"; }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A lock of the open file, not of the process: forks share it and F_OFD_GETLK can ask without
// taking.
struct flock whole_file(short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

absl::Status refuse(const std::string& folder, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("state folder ", folder, ": ", why));
}

// Makes the folder and its parents for the owner alone; an existing one must be so already.
absl::Status make_private(const std::string& folder) {
  const mode_t before = umask(0077);
  std::error_code error;
  fs::create_directories(folder, error);
  umask(before);
  if (error) return refuse(folder, error.message());
  struct stat found = {};
  if (lstat(folder.c_str(), &found) != 0) return refuse(folder, std::strerror(errno));
  if (!S_ISDIR(found.st_mode)) return refuse(folder, "it is not a folder");
  if (found.st_uid != geteuid()) return refuse(folder, "it belongs to another user");
  if ((found.st_mode & 0077) != 0) {
    return refuse(folder, "others may enter it; chmod it to 700 or name another one");
  }
  return absl::OkStatus();
}

}  // namespace

std::string default_state_root() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code error;
  if (runtime != nullptr && fs::is_directory(runtime, error))
    return absl::StrCat(runtime, "/brigade");
  return absl::StrCat("/tmp/brigade-", geteuid());
}

absl::StatusOr<std::string> state_folder_path(const std::string& cluster,
                                              const std::string& configured) {
  const bool plain =
      cluster.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == std::string::npos;
  if (cluster.empty() || cluster.size() > kMaxNameLength || !plain || cluster[0] == '.') {
    return absl::InvalidArgumentError(
        absl::StrCat("the cluster's name \"", cluster, "\" must be of 1 to ", kMaxNameLength,
                     " letters, digits, -, _ and ., and not begin with a dot"));
  }
  if (!configured.empty()) return fs::absolute(configured).lexically_normal().string();
  return absl::StrCat(default_state_root(), "/", cluster);
}

std::vector<std::string> running_clusters() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(default_state_root(), error)) {
    if (has_supervisor(entry.path().string())) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool has_supervisor(const std::string& folder) {
  const int file = open((folder + "/lock").c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  struct flock lock = whole_file(F_WRLCK);
  const bool held = fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  close(file);
  return held;
}

std::optional<ProcessIdentity> supervisor_of(const std::string& folder) {
  return parse_identity(read_file(supervisor_path(folder)));
}

std::string control_socket_path(const std::string& folder) { return folder + "/control"; }

std::string log_path(const std::string& folder, const std::string& process) {
  return absl::StrCat(logs_path(folder), "/", process, ".log");
}

std::vector<std::string> logged_processes(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(logs_path(folder), error)) {
    if (entry.path().extension() == ".log") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

int clean_leftovers(const std::string& folder, absl::Time deadline) {
  int killed = 0;
  std::error_code error;
  std::vector<ProcessIdentity> left;
  for (const auto& entry : fs::directory_iterator(processes_path(folder), error)) {
    const auto process = parse_identity(read_file(entry.path().string()));
    if (process && is_alive(*process)) left.push_back(*process);
  }
  for (const ProcessIdentity& process : left) {
    killed += signal_process(process, SIGKILL, /*group=*/true);
  }
  for (const ProcessIdentity& process : left) {
    while (is_alive(process) && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  }
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name != "logs" && name != "lock") fs::remove_all(entry.path(), error);
  }
  return killed;
}

absl::StatusOr<StateFolder> StateFolder::acquire(const std::string& folder, std::string* note) {
  RETURN_IF_ERROR(make_private(folder));
  const int file =
      open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return refuse(folder, absl::StrCat("lock: ", std::strerror(errno)));
  StateFolder state(folder, file);
  struct flock lock = whole_file(F_WRLCK);
  if (fcntl(file, F_OFD_SETLK, &lock) != 0) {
    const auto supervisor = supervisor_of(folder);
    return absl::FailedPreconditionError(
        absl::StrCat("this cluster is up already",
                     supervisor ? absl::StrCat(" (supervisor ", supervisor->pid, ")") : "", " in ",
                     folder, "; `brigade down` ends it"));
  }
  note->clear();
  if (const auto supervisor = supervisor_of(folder)) {
    const int killed = clean_leftovers(folder, absl::Now() + absl::Seconds(5));
    *note = absl::StrCat("cleaned what a dead supervisor (", supervisor->pid, ") left in ", folder,
                         killed > 0 ? absl::StrCat(", killed ", killed, " processes") : "");
  }
  std::error_code error;
  fs::remove_all(logs_path(folder), error);  // of the last run
  for (const std::string& part : {logs_path(folder), processes_path(folder)}) {
    fs::create_directory(part, error);
    if (error) return refuse(part, error.message());
  }
  return state;
}

StateFolder::StateFolder(StateFolder&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

StateFolder::~StateFolder() {
  if (lock_ >= 0) close(lock_);
}

absl::Status StateFolder::write_supervisor() {
  const auto self = identify(getpid());
  std::ofstream file(supervisor_path(path_), std::ios::trunc);
  if (!self || !(file << self->to_text() << std::flush)) {
    return refuse(path_, "the supervisor's identity cannot be written");
  }
  return absl::OkStatus();
}

void StateFolder::write_process(const std::string& name, pid_t pid) {
  if (const auto process = identify(pid)) {
    std::ofstream(absl::StrCat(processes_path(path_), "/", name)) << process->to_text();
  }
}

void StateFolder::remove_process(const std::string& name) {
  std::error_code error;
  fs::remove(absl::StrCat(processes_path(path_), "/", name), error);
}

void StateFolder::remove_all_but_logs() {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    if (name != "logs" && name != "lock") fs::remove_all(entry.path(), error);
  }
}

}  // namespace brigade::launcher
