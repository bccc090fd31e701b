// The conformance suite over NCCL's stand-in: the first node that a factory makes is the middle of
// the star, on device 0; the others are on the devices behind it.
#include "expert_parallel/transport/loopback_transport.h"
#include "tests/cuda_emulation/nccl/nccl_bed.h"
#include "tests/expert_parallel/transport_kinds.h"

namespace brigade::tests {

const std::vector<TransportKind>& transport_kinds() {
  static const std::vector<TransportKind> kinds = {
      {"nccl", [] {
         auto hub = expert_parallel::make_loopback_hub();
         auto made = std::make_shared<int>(0);
         return [hub, made](const expert_parallel::TransportOptions& options)
                    -> std::unique_ptr<expert_parallel::Transport> {
           const int node = (*made)++;
           auto device = make_emulated_device(node == 0 ? 0 : 1 + (node - 1) % 7);
           expert_parallel::TransportOptions heads = options;
           heads.max_message_bytes += expert_parallel::kNcclTrailerBytes;
           auto host = expert_parallel::make_loopback_transport(hub, heads);
           auto nccl = make_nccl_transport(std::move(host), *device,
                                           {.transport = options, .makes_ids = node == 0});
           return std::make_unique<StagedBodies>(std::move(device), std::move(nccl));
         };
       }}};
  return kinds;
}

}  // namespace brigade::tests
