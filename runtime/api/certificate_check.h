// Certificates and keys are looked at before a port opens: gRPC would take wrong ones and then fail
// every handshake without a word. Pure functions of the file system and the clock.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace brigade::runtime {

// INVALID_ARGUMENT names the flag and the file: unreadable, no PEM, a key that is not the
// certificate's, a certificate that is not valid yet or no longer.
absl::Status check_key_and_certificate(const std::string& key_path, const std::string& cert_path);

// The same for a file of authorities.
absl::Status check_authorities(const std::string& path, const std::string& flag);

}  // namespace brigade::runtime
