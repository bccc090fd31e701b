#include "tests/expert_parallel/transport_kinds.h"

#include "expert_parallel/transport/loopback_transport.h"
#include "gtest/gtest.h"
#ifdef BRIGADE_HAVE_UCX
#include "expert_parallel/transport/ucx_transport.h"
#endif

namespace brigade::tests {

using expert_parallel::TransportOptions;

namespace {

#ifdef BRIGADE_HAVE_UCX
TransportFactory ucx_factory(bool shared_memory) {
  return [shared_memory](
             const TransportOptions& options) -> std::unique_ptr<expert_parallel::Transport> {
    auto transport =
        expert_parallel::make_ucx_transport({.transport = options,
                                             .shared_memory = shared_memory,
                                             .net_devices = shared_memory ? "" : "lo"});
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  };
}
#endif

}  // namespace

const std::vector<TransportKind>& transport_kinds() {
  static const std::vector<TransportKind> kinds = {
      {"loopback",
       [] {
         auto hub = expert_parallel::make_loopback_hub();
         return [hub](const TransportOptions& options) {
           return expert_parallel::make_loopback_transport(hub, options);
         };
       }},
#ifdef BRIGADE_HAVE_UCX
      {"ucx_tcp", [] { return ucx_factory(/*shared_memory=*/false); }},
      {"ucx_shm", [] { return ucx_factory(/*shared_memory=*/true); }, false},
#endif
  };
  return kinds;
}

}  // namespace brigade::tests
