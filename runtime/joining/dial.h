// How a process that serves a coordinator reaches its control port, expert workers and draft
// workers alike: address, TLS, token, and whom it trusts. Data and checks; the channel is gRPC's.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class Channel;
}

namespace brigade::runtime {

struct DialOptions {
  std::string address;            // HOST:PORT
  std::string ca;                 // PEM file; empty: no TLS
  std::string tls_cert, tls_key;  // PEM files that this worker shows; empty: none
  std::string server_name;        // in the coordinator's certificate; empty: the dialled host
  std::string token_file;         // empty: none
};

// INVALID_ARGUMENT names the flag of a file that cannot be read.
absl::Status check_files(const DialOptions& options);

// The host of HOST:PORT, without brackets. INVALID_ARGUMENT names --join.
absl::StatusOr<std::string> host_of(const std::string& address);

// INVALID_ARGUMENT: half a TLS pair, a token that would travel in clear, another host without
// protection unless `insecure`.
absl::Status check_trust(const DialOptions& options, bool loopback, bool insecure);

// Files are read anew at each call, so that they may change. Every channel is a fresh attempt:
// delays between them are the caller's.
absl::StatusOr<std::shared_ptr<grpc::Channel>> open_channel(const DialOptions& options);
// "Bearer TOKEN", or "" without a token file.
absl::StatusOr<std::string> bearer_of(const DialOptions& options);

}  // namespace brigade::runtime
