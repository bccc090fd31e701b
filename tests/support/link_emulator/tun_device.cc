#include "tests/support/link_emulator/tun_device.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/core/status.h"

extern char** environ;

namespace brigade::tests {
namespace {

constexpr char kFolder[] = "/var/run/netns/";

absl::Status system_error(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

absl::Status run(const std::string& command) {
  std::vector<std::string> words = absl::StrSplit(command, ' ');
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = posix_spawnp(&pid, pointers[0], nullptr, nullptr, pointers.data(), environ);
      error != 0)
    return absl::UnavailableError(absl::StrCat(command, ": ", std::strerror(error)));
  int status = 0;
  waitpid(pid, &status, 0);
  if (status == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(command, ": ended with ", status));
}

// Inside another network namespace while it lives.
class Visit {
 public:
  static absl::StatusOr<Visit> enter(const std::string& name) {
    Visit visit(open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    const int there = open(absl::StrCat(kFolder, name).c_str(), O_RDONLY | O_CLOEXEC);
    if (visit.home_ < 0 || there < 0) return system_error(name);
    const int entered = setns(there, CLONE_NEWNET);
    close(there);
    if (entered != 0) return system_error(absl::StrCat("setns ", name));
    return visit;
  }
  Visit(Visit&& other) noexcept : home_(std::exchange(other.home_, -1)) {}
  ~Visit() {
    if (home_ < 0) return;
    if (setns(home_, CLONE_NEWNET) != 0) std::abort();
    close(home_);
  }

 private:
  explicit Visit(int home) : home_(home) {}
  int home_;
};

absl::StatusOr<int> make_tun(const std::string& device) {
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return system_error("/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, device.c_str(), IFNAMSIZ - 1);
  if (ioctl(fd, TUNSETIFF, &request) == 0) return fd;
  const absl::Status error = system_error(absl::StrCat("TUNSETIFF ", device));
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<NetworkNamespace> NetworkNamespace::create(const std::string& name) {
  RETURN_IF_ERROR(run(absl::StrCat("ip netns add ", name)));
  NetworkNamespace made(name);
  ASSIGN_OR_RETURN(const Visit visit, Visit::enter(name));
  RETURN_IF_ERROR(run("ip link set lo up"));
  return made;
}

NetworkNamespace::NetworkNamespace(NetworkNamespace&& other) noexcept
    : name_(std::exchange(other.name_, "")) {}

NetworkNamespace::~NetworkNamespace() {
  if (!name_.empty()) run(absl::StrCat("ip netns del ", name_)).IgnoreError();
}

absl::StatusOr<int> NetworkNamespace::open_tun(const std::string& device,
                                               const std::string& address, const std::string& peer,
                                               bool routes_all) {
  ASSIGN_OR_RETURN(const Visit visit, Visit::enter(name_));
  ASSIGN_OR_RETURN(const int fd, make_tun(device));
  absl::Status status = run(absl::StrCat("ip addr add ", address, " peer ", peer, " dev ", device));
  if (status.ok()) status = run(absl::StrCat("ip link set ", device, " up"));
  if (status.ok() && routes_all) status = run(absl::StrCat("ip route add default dev ", device));
  if (status.ok()) return fd;
  close(fd);
  return status;
}

void sweep_namespaces(const std::string& prefix) {
  DIR* folder = opendir(kFolder);
  if (folder == nullptr) return;
  std::vector<std::string> stale;
  while (const dirent* entry = readdir(folder)) {
    const std::string name = entry->d_name;
    if (!absl::StartsWith(name, prefix)) continue;
    const pid_t pid = std::atoi(name.c_str() + prefix.size());
    if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) stale.push_back(name);
  }
  closedir(folder);
  for (const std::string& name : stale) run(absl::StrCat("ip netns del ", name)).IgnoreError();
}

}  // namespace brigade::tests
