// The bytes that one end of a link gives to the other over the control plane: how to reach the
// process, which receives were posted for it, and on which host it runs. Checked before any of it
// reaches the communication library, which trusts its input. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "expert_parallel/transport/host_identity.h"

namespace brigade::expert_parallel {

struct LinkAddress {
  uint32_t link = 0;    // at the receiver: which posted receives the sender's messages match
  uint16_t nonce = 0;   // an outsider cannot guess a link from its small number alone
  uint16_t window = 0;  // receives posted
  uint32_t max_message_bytes = 0;
  HostIdentity host;
  std::string worker;      // the library's own address, all transports
  std::string worker_net;  // the same, network transports only
};

std::string encode_link_address(const LinkAddress& address);
// INVALID_ARGUMENT: not such bytes, cut short, too long, or changed on the way.
absl::StatusOr<LinkAddress> decode_link_address(const std::string& bytes);

}  // namespace brigade::expert_parallel
