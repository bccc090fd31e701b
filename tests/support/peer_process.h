// Another process of the same test binary, at the far end of a link; addresses go through its stdin
// and stdout. Its main() learns from the environment what it is to be. Killed at the latest when
// the object goes. One thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/transport_node.h"

namespace brigade::tests {

// One line, by either end.
void write_address(int fd, const std::string& bytes);
std::string read_address(int fd);

class PeerProcess {
 public:
  // Names and values that the process finds in its environment.
  explicit PeerProcess(const std::vector<std::pair<std::string, std::string>>& environment);
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The control plane's part.
  expert_parallel::PeerId join(TransportNode& node);
  void signal(int number);
  void kill_and_wait();
  // Has died, and was buried: until then the system counts it as there.
  bool ended();

 private:
  pid_t pid_ = 0;  // 0: ended
  int to_ = -1, from_ = -1;
};

}  // namespace brigade::tests
