// Another process of the same test binary, at the far end of an NCCL link; addresses go through its
// stdin and stdout. Killed at the latest when the object goes.
#pragma once

#include <sys/types.h>

#include <string>

#include "tests/support/transport_node.h"

namespace brigade::tests {

// In the environment of a peer: its device.
inline constexpr char kPeerVariable[] = "BRIGADE_TEST_NCCL_PEER";

void write_address(int fd, const std::string& bytes);
std::string read_address(int fd);

struct PeerOptions {
  int device = 1;
  int kill_after = 0;  // dies in the middle of this transfer; 0: lives
};

class PeerProcess {
 public:
  explicit PeerProcess(const PeerOptions& options);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  // The control plane's part.
  expert_parallel::PeerId join(TransportNode& node);
  // Has died, and was buried: until then the system counts it as there.
  bool ended();

 private:
  pid_t pid_ = 0;
  int to_ = -1, from_ = -1;
};

}  // namespace brigade::tests
