#include "runtime/api/server_credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "runtime/api/certificate_check.h"

namespace brigade::runtime {
namespace {

// How often the files are looked at for new certificates; gRPC takes whole seconds.
constexpr unsigned int kReloadSeconds = 1;

// Of a call at that door. The control port serves two kinds of worker; neither may pass for the
// other.
std::vector<Role> roles_taken(DoorKind kind, std::string_view path) {
  if (kind == DoorKind::kApi) return {Role::kClient, Role::kOperator};
  return {path.starts_with("/brigade.v1.DraftControl/") ? Role::kDraft : Role::kWorker};
}

// Once one of these has a token, calls must carry one.
std::vector<Role> roles_guarded(DoorKind kind) {
  if (kind == DoorKind::kApi) return {Role::kClient, Role::kOperator};
  return {Role::kWorker, Role::kDraft};
}

// What a door asks of tokens: one of a role that the call is for.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  TokenCheck(std::shared_ptr<TokenWatch> tokens, DoorKind kind)
      : tokens_(std::move(tokens)), kind_(kind) {}

  bool IsBlocking() const override { return false; }

  // Health is open: probes carry no token and learn two bits. The header stays for the call, which
  // may look at the role again.
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    std::string_view path;
    if (const auto found = metadata.find(":path"); found != metadata.end()) {
      path = {found->second.data(), found->second.size()};
    }
    if (path.starts_with("/grpc.health.v1.Health/")) return grpc::Status::OK;
    const std::vector<Role> taken = roles_taken(kind_, path);
    const auto given = metadata.find("authorization");
    if (given == metadata.end()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              absl::StrCat("authorization: missing; send Bearer and a ", token_of(taken))};
    }
    const auto role = tokens_->now()->role_of({given->second.data(), given->second.size()});
    if (!role) {
      return {grpc::StatusCode::UNAUTHENTICATED, "authorization: not a token of this server"};
    }
    if (std::find(taken.begin(), taken.end(), *role) == taken.end()) {
      return {grpc::StatusCode::PERMISSION_DENIED,
              absl::StrCat("authorization: this port needs a ", token_of(taken))};
    }
    return grpc::Status::OK;
  }

 private:
  static std::string token_of(const std::vector<Role>& roles) {
    return absl::StrCat(
        absl::StrJoin(roles, " or ",
                      [](std::string* out, Role role) { out->append(role_name(role)); }),
        " token");
  }

  const std::shared_ptr<TokenWatch> tokens_;
  const DoorKind kind_;
};

const char* listen_flag(DoorKind kind) {
  return kind == DoorKind::kApi ? "--listen" : "--control-listen";
}

const char* token_flag(DoorKind kind) {
  return kind == DoorKind::kApi ? "--token-file" : "--worker-token-file";
}

// Certificates are read again when their files change; connections that are open stay.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> tls_credentials(
    const DoorOptions& options) {
  RETURN_IF_ERROR(check_key_and_certificate(options.tls_key, options.tls_cert));
  if (!options.client_ca.empty()) {
    RETURN_IF_ERROR(check_authorities(options.client_ca, "--client-ca"));
  }
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions ssl(std::make_shared<tls::FileWatcherCertificateProvider>(
      options.tls_key, options.tls_cert, options.client_ca, kReloadSeconds));
  ssl.watch_identity_key_cert_pairs();
  if (!options.client_ca.empty()) {
    ssl.watch_root_certs();
    ssl.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(ssl);
}

// `guarded`: some role that the door takes has a token.
absl::Status check_protection(const DoorOptions& options, bool loopback, bool guarded) {
  const bool tls = !options.tls_cert.empty();
  if (tls == options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together");
  }
  if (!options.client_ca.empty() && !tls) {
    return absl::InvalidArgumentError("--client-ca needs --tls-cert and --tls-key");
  }
  if (loopback) return absl::OkStatus();
  if (options.insecure) {
    if (tls || !guarded) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(token_flag(options.kind),
                     ": the token would travel in clear; add --tls-cert and --tls-key"));
  }
  const std::string what = absl::StrCat(listen_flag(options.kind), " ", options.listen,
                                        " is not a loopback address: add ");
  // A client certificate says that somebody is trusted, not that they may join as a worker.
  const bool api = options.kind == DoorKind::kApi;
  const char* guard = api ? "--token-file or --client-ca" : "--worker-token-file";
  if (!tls) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, "--tls-cert and --tls-key with ", guard, ", or say --insecure"));
  }
  if (!guarded && !(api && !options.client_ca.empty())) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, guard, " so that not everybody may use it, or say --insecure"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<bool> is_loopback(const std::string& address, const std::string& flag) {
  if (address.starts_with("unix:")) return true;
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", address, ": expected host:port, such as 127.0.0.1:50051"));
  }
  const std::string host = address.substr(0, colon);
  if (host.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", address, ": name the host; 0.0.0.0 means every interface"));
  }
  if (host == "localhost" || host == "[::1]") return true;
  if (!host.starts_with("127.")) return false;
  return host.find_first_not_of("0123456789.") == std::string::npos;
}

absl::StatusOr<DoorCredentials> server_credentials(const DoorOptions& options) {
  ASSIGN_OR_RETURN(const bool loopback, is_loopback(options.listen, listen_flag(options.kind)));
  DoorCredentials door;
  ASSIGN_OR_RETURN(door.tokens,
                   TokenWatch::open({options.token_file, options.operator_token_file,
                                     options.worker_token_file, options.draft_token_file}));
  bool guarded = false;
  for (const Role role : roles_guarded(options.kind)) {
    guarded = guarded || door.tokens->now()->has(role);
  }
  RETURN_IF_ERROR(check_protection(options, loopback, guarded));
  if (!options.tls_cert.empty()) {
    ASSIGN_OR_RETURN(door.credentials, tls_credentials(options));
  } else if (guarded) {
    // Plain bytes on loopback, but with a place for the token check.
    door.credentials = grpc::experimental::LocalServerCredentials(
        options.listen.starts_with("unix:") ? UDS : LOCAL_TCP);
  } else {
    door.credentials = grpc::InsecureServerCredentials();
  }
  if (guarded) {
    door.credentials->SetAuthMetadataProcessor(
        std::make_shared<TokenCheck>(door.tokens, options.kind));
  }
  return door;
}

bool may_see_cluster(const AccessTokens& tokens, std::string_view authorization) {
  return !tokens.has(Role::kOperator) || tokens.role_of(authorization) == Role::kOperator;
}

}  // namespace brigade::runtime
