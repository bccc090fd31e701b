#include "expert_parallel/transport/transport.h"

#include "kernels/core/check.h"

namespace brigade::expert_parallel {

void TransportListener::on_device_message(PeerId, uint64_t, std::span<const std::byte>,
                                          std::span<const std::byte>) {
  CHECK(false);  // whoever links over device memory listens for it
}

void Transport::release_after(uint64_t receipt, kernels::Stream&) { release(receipt); }

}  // namespace brigade::expert_parallel
