// A connection to a coordinator. The only file of the launcher behind which gRPC lives.
// Thread-safe: bench runs many calls at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "brigade/v1/generation.pb.h"

namespace brigade::launcher {

struct ConnectOptions {
  std::string server = "127.0.0.1:50051";
  std::string ca;           // PEM: the server's certificate must be signed by it; turns TLS on
  std::string cert, key;    // PEM: the client's own, where the server asks for one
  std::string token_file;   // sent with every call
  std::string server_name;  // expected in the certificate, when it differs from the address
};

class Client {
 public:
  // INVALID_ARGUMENT for files that cannot be read. Does not wait for the server.
  static absl::StatusOr<std::unique_ptr<Client>> create(const ConnectOptions& options);
  ~Client();

  // Streams the answer to `on_message`, in this thread, until its end or until on_message returns
  // false or *interrupted becomes true (CANCELLED then).
  absl::Status generate(const v1::GenerateRequest& request, absl::Time deadline,
                        const std::function<bool(const v1::GenerateResponse&)>& on_message,
                        const std::atomic<bool>* interrupted = nullptr);

  absl::StatusOr<v1::GetStatusResponse> status(absl::Time deadline);

  // The health service's word on service "" (ready) or "live".
  absl::StatusOr<bool> healthy(const std::string& service, absl::Time deadline);

 private:
  struct Connection;
  explicit Client(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace brigade::launcher
