#include "cluster_file/surroundings.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "cluster_file/cluster_layout.h"

namespace brigade::cluster_file {
namespace {

constexpr size_t kMaxRead = 64 << 10;

// True when one of this machine's interfaces has the literal address.
bool is_own_address(const std::string& address) {
  in_addr v4 = {};
  in6_addr v6 = {};
  const bool is_v4 = inet_pton(AF_INET, address.c_str(), &v4) == 1;
  if (!is_v4 && inet_pton(AF_INET6, address.c_str(), &v6) != 1) return false;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool found = false;
  for (const ifaddrs* i = interfaces; i != nullptr && !found; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (is_v4 && i->ifa_addr->sa_family == AF_INET) {
      const auto* own = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
      found = std::memcmp(&own->sin_addr, &v4, sizeof(v4)) == 0;
    } else if (!is_v4 && i->ifa_addr->sa_family == AF_INET6) {
      const auto* own = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr);
      found = std::memcmp(&own->sin6_addr, &v6, sizeof(v6)) == 0;
    }
  }
  freeifaddrs(interfaces);
  return found;
}

class ThisMachine final : public Surroundings {
 public:
  bool is_here(const std::string& address) const override {
    if (is_loopback_address(address) || is_own_address(address)) return true;
    char name[256] = {};
    return gethostname(name, sizeof(name) - 1) == 0 && address == name;
  }

  bool is_folder(const std::string& path) const override {
    struct stat info = {};
    return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  std::optional<std::string> read_file(const std::string& path) const override {
    // Not to wait for a writer of a pipe.
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) return std::nullopt;
    struct stat info = {};
    std::optional<std::string> text;
    if (fstat(descriptor, &info) == 0 && S_ISREG(info.st_mode)) {
      text.emplace(kMaxRead, '\0');
      const ssize_t got = read(descriptor, text->data(), text->size());
      text->resize(got < 0 ? 0 : static_cast<size_t>(got));
      if (got < 0) text.reset();
    }
    close(descriptor);
    return text;
  }
};

}  // namespace

const Surroundings& this_machine() {
  static const ThisMachine machine;
  return machine;
}

}  // namespace brigade::cluster_file
