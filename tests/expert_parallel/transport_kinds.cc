#include "tests/expert_parallel/transport_kinds.h"

#include "expert_parallel/transport/loopback_transport.h"

namespace brigade::tests {

using expert_parallel::TransportOptions;

const std::vector<TransportKind>& transport_kinds() {
  static const std::vector<TransportKind> kinds = {
      {"loopback",
       [] {
         auto hub = expert_parallel::make_loopback_hub();
         return [hub](const TransportOptions& options) {
           return expert_parallel::make_loopback_transport(hub, options);
         };
       }},
  };
  return kinds;
}

}  // namespace brigade::tests
