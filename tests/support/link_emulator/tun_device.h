// Network namespaces and TUN devices in them, made with the `ip` program. Needs root. Not for
// programs with threads: opening a device enters the namespace for a moment.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace brigade::tests {

// A namespace with its loopback up; gone with the object, with everything inside.
class NetworkNamespace {
 public:
  static absl::StatusOr<NetworkNamespace> create(const std::string& name);
  NetworkNamespace(NetworkNamespace&& other) noexcept;
  NetworkNamespace& operator=(NetworkNamespace&&) = delete;
  ~NetworkNamespace();

  const std::string& name() const { return name_; }
  // A point-to-point device with this address, the peer's behind it, as a descriptor that does not
  // block. Each read and write is one IP packet. `routes_all`: everything else goes there too.
  absl::StatusOr<int> open_tun(const std::string& device, const std::string& address,
                               const std::string& peer, bool routes_all);

 private:
  explicit NetworkNamespace(std::string name) : name_(std::move(name)) {}
  std::string name_;  // empty: moved from
};

// Deletes namespaces "PREFIX<pid>-..." whose process has ended without doing so.
void sweep_namespaces(const std::string& prefix);

}  // namespace brigade::tests
