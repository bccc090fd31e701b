// Who may talk to the server: loopback only unless TLS (with a token or client certificates) or the
// word --insecure says otherwise. The token is compared in constant time and never logged.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/api/door_options.h"

namespace grpc {
class ServerCredentials;
}

namespace brigade::runtime {

// INVALID_ARGUMENT names the flag: address without a port, a non-loopback address without
// protection, half a TLS pair, a token that would travel in clear, a file that cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(
    const DoorOptions& options);

// True for 127.0.0.0/8, ::1, "localhost" and unix sockets. INVALID_ARGUMENT, naming `flag`, when
// there is no port.
absl::StatusOr<bool> is_loopback(const std::string& address, const std::string& flag = "--listen");

// Time depends on the lengths only.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace brigade::runtime
