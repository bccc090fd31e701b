#include "runtime/api/server_credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxSecretFileBytes = 1 << 20;
constexpr size_t kMinTokenBytes = 16;

absl::StatusOr<std::string> read_secret(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  std::string text(kMaxSecretFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.empty()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", path, " is empty"));
  return text;
}

// Refuses calls without the token. Health is open: probes carry none and learn two bits.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(std::string token) : expected_("Bearer " + std::move(token)) {}

  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path != metadata.end() && path->second.starts_with("/grpc.health.v1.Health/")) {
      return grpc::Status::OK;
    }
    const auto given = metadata.find("authorization");
    if (given == metadata.end()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "authorization: missing; send Bearer and the token"};
    }
    if (!equal_in_constant_time({given->second.data(), given->second.size()}, expected_)) {
      return {grpc::StatusCode::UNAUTHENTICATED, "authorization: not the server's token"};
    }
    consumed->insert({"authorization", std::string(given->second.data(), given->second.size())});
    return grpc::Status::OK;
  }

 private:
  const std::string expected_;
};

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> tls_credentials(
    const DoorOptions& options) {
  grpc::SslServerCredentialsOptions::PemKeyCertPair pair;
  ASSIGN_OR_RETURN(pair.private_key, read_secret(options.tls_key, "--tls-key"));
  ASSIGN_OR_RETURN(pair.cert_chain, read_secret(options.tls_cert, "--tls-cert"));
  grpc::SslServerCredentialsOptions ssl(
      options.client_ca.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (!options.client_ca.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_root_certs, read_secret(options.client_ca, "--client-ca"));
  }
  ssl.pem_key_cert_pairs.push_back(std::move(pair));
  return grpc::SslServerCredentials(ssl);
}

absl::Status check_protection(const DoorOptions& options, bool loopback) {
  const bool tls = !options.tls_cert.empty();
  if (tls == options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together");
  }
  if (!options.client_ca.empty() && !tls) {
    return absl::InvalidArgumentError("--client-ca needs --tls-cert and --tls-key");
  }
  if (loopback || options.insecure) {
    if (!loopback && !tls && !options.token_file.empty()) {
      return absl::InvalidArgumentError(
          "--token-file: the token would travel in clear; add --tls-cert and --tls-key");
    }
    return absl::OkStatus();
  }
  if (!tls) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", options.listen,
        " is not a loopback address: add --tls-cert and --tls-key with --token-file or "
        "--client-ca, or say --insecure"));
  }
  if (options.token_file.empty() && options.client_ca.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", options.listen,
                     " is not a loopback address: add --token-file or --client-ca so that not "
                     "everybody may use it, or say --insecure"));
  }
  return absl::OkStatus();
}

}  // namespace

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  volatile uint8_t different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const uint8_t other = b.empty() ? 0 : static_cast<uint8_t>(b[i % b.size()]);
    different = different | (static_cast<uint8_t>(a[i]) ^ other);
  }
  return different == 0;
}

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

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(
    const DoorOptions& options) {
  ASSIGN_OR_RETURN(const bool loopback, is_loopback(options.listen));
  RETURN_IF_ERROR(check_protection(options, loopback));
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (!options.tls_cert.empty()) {
    ASSIGN_OR_RETURN(credentials, tls_credentials(options));
  } else if (!options.token_file.empty()) {
    // Plain bytes on loopback, but with a place for the token check.
    credentials = grpc::experimental::LocalServerCredentials(
        options.listen.starts_with("unix:") ? UDS : LOCAL_TCP);
  } else {
    return grpc::InsecureServerCredentials();
  }
  if (!options.token_file.empty()) {
    ASSIGN_OR_RETURN(std::string token, read_secret(options.token_file, "--token-file"));
    while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
    if (token.size() < kMinTokenBytes) {
      return absl::InvalidArgumentError(absl::StrCat("--token-file: the token has ", token.size(),
                                                     " bytes, needs at least ", kMinTokenBytes));
    }
    credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(std::move(token)));
  }
  return credentials;
}

}  // namespace brigade::runtime
