#include "launcher/supervisor/control_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/status.h"
#include "launcher/supervisor/control_socket.h"

namespace brigade::launcher {
namespace {

constexpr size_t kMaxAnswer = 4 << 20;

class Socket {
 public:
  Socket() : descriptor_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }

  // False at the deadline.
  bool wait_for(short events, absl::Time deadline) const {
    pollfd waiting = {.fd = descriptor_, .events = events, .revents = 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    return left > 0 && poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left, 60'000))) > 0;
  }

 private:
  const int descriptor_;
};

absl::Status dial(const Socket& socket, const std::string& folder) {
  const ControlSocketPath path(folder);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.path().c_str(), sizeof(address.sun_path) - 1);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(
        absl::StrCat("no supervisor answers in ", folder, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ControlAnswer> ask_supervisor(const std::string& folder,
                                             const ControlRequest& request, absl::Time deadline) {
  const Socket socket;
  RETURN_IF_ERROR(dial(socket, folder));
  const std::string line = to_line(request);  // far below the socket's buffer
  if (send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(line.size())) {
    return absl::UnavailableError(absl::StrCat("the supervisor in ", folder, " hung up"));
  }
  std::string answer;
  while (answer.size() < kMaxAnswer) {
    if (!socket.wait_for(POLLIN, deadline)) {
      return absl::DeadlineExceededError(
          absl::StrCat("the supervisor in ", folder, " does not answer"));
    }
    char bytes[4096];
    const ssize_t count = recv(socket.get(), bytes, sizeof(bytes), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) break;
    answer.append(bytes, static_cast<size_t>(count));
    if (answer.back() == '\n') return parse_answer(answer);
  }
  return absl::UnavailableError(absl::StrCat("the supervisor in ", folder, " hung up"));
}

}  // namespace brigade::launcher
