// Who may talk to a server: loopback only unless TLS (with tokens or client certificates) or the
// word --insecure says otherwise. Each door takes the tokens of its roles: another role's gets
// PERMISSION_DENIED with the role that is needed, no or a strange token UNAUTHENTICATED.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/api/access_tokens.h"
#include "runtime/api/door_options.h"
#include "runtime/api/token_watch.h"

namespace grpc {
class ServerCredentials;
}

namespace brigade::runtime {

struct DoorCredentials {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::shared_ptr<TokenWatch> tokens;  // never null
};

// INVALID_ARGUMENT names the flag: address without a port, a non-loopback address without
// protection, half a TLS pair, a token that would travel in clear or that two roles share, a file
// that cannot be read or is not what it should be. New certificates and tokens are taken up
// from the files within two seconds.
absl::StatusOr<DoorCredentials> server_credentials(const DoorOptions& options);

// Whether a call with this authorization header may see who is in the cluster: operators only, once
// operators have a token.
bool may_see_cluster(const AccessTokens& tokens, std::string_view authorization);

// True for 127.0.0.0/8, ::1, "localhost" and unix sockets. INVALID_ARGUMENT, naming `flag`, when
// there is no port.
absl::StatusOr<bool> is_loopback(const std::string& address, const std::string& flag = "--listen");

}  // namespace brigade::runtime
