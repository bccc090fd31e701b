// The transport of one process: messages are copied between transports that share a hub. Reference
// for the other transports, and the test bed under thread sanitizers. Each transport has its own
// progress thread; the hub may be shared by all of them.
#pragma once

#include <memory>

#include "expert_parallel/transport/transport.h"

namespace brigade::expert_parallel {

class LoopbackHub;
std::shared_ptr<LoopbackHub> make_loopback_hub();

std::unique_ptr<Transport> make_loopback_transport(std::shared_ptr<LoopbackHub> hub,
                                                   const TransportOptions& options = {});

}  // namespace brigade::expert_parallel
