#include "runtime/joining/dial.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

absl::StatusOr<std::string> read_file(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()) || text.str().empty())
    return absl::InvalidArgumentError(absl::StrCat(flag, ": cannot read ", path));
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials_of(
    const DialOptions& options) {
  if (options.ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, read_file(options.ca, "--ca"));
  if (!options.tls_cert.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, read_file(options.tls_cert, "--tls-cert"));
    ASSIGN_OR_RETURN(ssl.pem_private_key, read_file(options.tls_key, "--tls-key"));
  }
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::Status check_files(const DialOptions& options) {
  RETURN_IF_ERROR(credentials_of(options).status());
  return bearer_of(options).status();
}

absl::StatusOr<std::string> bearer_of(const DialOptions& options) {
  if (options.token_file.empty()) return std::string();
  ASSIGN_OR_RETURN(std::string token, read_file(options.token_file, "--token-file"));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r')) token.pop_back();
  return "Bearer " + token;
}

absl::StatusOr<std::string> host_of(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--join ", address, ": expected HOST:PORT, such as 127.0.0.1:50052"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return host;
}

absl::Status check_trust(const DialOptions& dial, bool loopback, bool insecure) {
  if (dial.tls_cert.empty() != dial.tls_key.empty())
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together");
  if (!dial.tls_cert.empty() && dial.ca.empty())
    return absl::InvalidArgumentError("--tls-cert and --tls-key need --ca, which turns TLS on");
  if (loopback) return absl::OkStatus();
  if (dial.ca.empty() && !dial.token_file.empty())
    return absl::InvalidArgumentError(
        "--token-file: the token would travel in clear to another host; add --ca");
  if (!insecure && (dial.ca.empty() || dial.token_file.empty()))
    return absl::InvalidArgumentError(
        absl::StrCat("--join ", dial.address,
                     " is not a loopback address: add --ca and --token-file, or say --insecure"));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(const DialOptions& options) {
  ASSIGN_OR_RETURN(const auto credentials, credentials_of(options));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!options.server_name.empty()) arguments.SetSslTargetNameOverride(options.server_name);
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

}  // namespace brigade::runtime
