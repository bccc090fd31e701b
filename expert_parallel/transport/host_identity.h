// Whether two processes can share memory: same boot of the same kernel, same net, ipc and pid
// namespaces. Across network namespaces of one host UCX takes shared memory for usable and then
// moves nothing, so both ends compare identities first. Plain data; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace brigade::expert_parallel {

struct HostIdentity {
  std::string boot_id;                   // /proc/sys/kernel/random/boot_id; empty when unknown
  std::array<uint64_t, 3> namespaces{};  // inodes of net, ipc, pid; 0 when unknown

  // Of the calling process.
  static HostIdentity read();
};

// False when anything is unknown.
bool may_share_memory(const HostIdentity& a, const HostIdentity& b);

}  // namespace brigade::expert_parallel
