// NCCL links inside one test process: emulated devices, the transport over the stand-in, and host
// bodies over it for suites that know no device memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/nccl_module.h"
#include "kernels/core/device_cuda.h"
#include "tests/support/transport_wrapper.h"

namespace brigade::tests {

// An emulated device. Eight of them, whatever the environment says.
std::unique_ptr<kernels::Device> make_emulated_device(int ordinal);

std::unique_ptr<expert_parallel::Transport> make_nccl_transport(
    std::unique_ptr<expert_parallel::Transport> host, kernels::Device& device,
    const expert_parallel::NcclOptions& options);

// Takes bodies in host memory: copies them to its device and, at the other end, back.
class StagedBodies : public TransportWrapper {
 public:
  StagedBodies(std::unique_ptr<kernels::Device> device,
               std::unique_ptr<expert_parallel::Transport> inner);
  ~StagedBodies() override;

  absl::Status send(expert_parallel::PeerId peer, const expert_parallel::Message& message,
                    uint64_t cookie) override;
  void recycle(expert_parallel::PeerId peer, uint64_t cookie);
  void release(uint64_t receipt) override;

  void on_device_message(expert_parallel::PeerId peer, uint64_t receipt,
                         std::span<const std::byte> head,
                         std::span<const std::byte> device_body) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override;

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  const std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::map<std::pair<expert_parallel::PeerId, uint64_t>, kernels::Buffer> sending_;
  std::vector<kernels::Buffer> spare_;  // freeing one would wait for the device
  std::map<uint64_t, std::unique_ptr<std::byte, Free>> received_;  // by receipt
};

}  // namespace brigade::tests
