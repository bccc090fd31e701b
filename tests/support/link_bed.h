// Network namespaces joined by emulated links, for a test: starts the link_emulator program, gives
// it commands, and enters namespaces. Everything is gone with the object, or with this process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace brigade::tests {

class LinkBed {
 public:
  // One link for each pair of hosts, named by a letter or so: {{"a", "b"}, {"a", "c"}}. The first
  // of link i has the address 10.77.<i+1>.1, the second 10.77.<i+1>.2 and all its routes there.
  // UNAVAILABLE: this machine does not let us (no root, no TUN, no `ip`).
  static absl::StatusOr<std::unique_ptr<LinkBed>> create(
      uint64_t seed, const std::vector<std::pair<std::string, std::string>>& links);
  ~LinkBed();

  // A command of link_emulator without the link's number, e.g. "loss 0.1".
  void set(int link, const std::string& command);
  // A count of link_emulator, e.g. "there lost".
  uint64_t count(int link, const std::string& direction, const std::string& name);

  // Name of a host's namespace, for `ip netns exec`.
  std::string namespace_of(const std::string& host) const;
  // Runs on a thread of its own that is inside; sockets made there stay there.
  void inside(const std::string& host, const std::function<void()>& work) const;

 private:
  LinkBed() = default;
  std::string ask(const std::string& line);

  int to_ = -1, from_ = -1;
  pid_t pid_ = -1;
};

}  // namespace brigade::tests
