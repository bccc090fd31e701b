// The supervisor's end of the control socket. Lives on its io_context and thread. A connection asks
// once; at most 16 are open, further ones wait in the kernel's queue; one that says nothing for 5 s
// is closed.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace boost::asio {
class io_context;
}

namespace brigade::launcher {

class Supervisor;

class ControlServer {
 public:
  // Listens on control_socket_path(folder). INTERNAL names the folder when it cannot.
  static absl::StatusOr<std::unique_ptr<ControlServer>> create(boost::asio::io_context& io,
                                                               const std::string& folder,
                                                               Supervisor& supervisor);
  ~ControlServer();

 private:
  struct Listener;
  explicit ControlServer(std::shared_ptr<Listener> listener);
  std::shared_ptr<Listener> listener_;
};

}  // namespace brigade::launcher
