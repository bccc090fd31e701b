#include "expert_parallel/transport/host_identity.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

namespace brigade::expert_parallel {

HostIdentity HostIdentity::read() {
  HostIdentity identity;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::getline(file, identity.boot_id);
  const char* const paths[] = {"/proc/self/ns/net", "/proc/self/ns/ipc", "/proc/self/ns/pid"};
  for (size_t i = 0; i < identity.namespaces.size(); ++i) {
    struct stat about;
    if (stat(paths[i], &about) == 0) identity.namespaces[i] = about.st_ino;
  }
  return identity;
}

bool may_share_memory(const HostIdentity& a, const HostIdentity& b) {
  return !a.boot_id.empty() && a.boot_id == b.boot_id && a.namespaces == b.namespaces &&
         std::find(a.namespaces.begin(), a.namespaces.end(), 0u) == a.namespaces.end();
}

}  // namespace brigade::expert_parallel
