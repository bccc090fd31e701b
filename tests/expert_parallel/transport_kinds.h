// The transports that the conformance suite runs over, as test parameters.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/transport.h"

namespace brigade::tests {

// Makes transports that can reach one another.
using TransportFactory = std::function<std::unique_ptr<expert_parallel::Transport>(
    const expert_parallel::TransportOptions&)>;

struct TransportKind {
  std::string name;
  std::function<TransportFactory()> make_factory;
  // False: a peer counts as there while its process lives, so that its end needs a process of its
  // own.
  bool sees_end_within_process = true;
};

// All that this build has.
const std::vector<TransportKind>& transport_kinds();

}  // namespace brigade::tests
