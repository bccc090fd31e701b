// Device bodies over a host transport, for devices on the CPU: bodies are copied out of and into
// device memory at the ends, so that code which moves rows in device memory only is tested without
// a GPU. What a reader has released is overwritten as soon as its stream lets go. Threads as the
// wrapped transport's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "tests/support/transport_wrapper.h"

namespace brigade::tests {

class DeviceFrames : public TransportWrapper {
 public:
  DeviceFrames(std::unique_ptr<expert_parallel::Transport> inner, kernels::Device& device);
  ~DeviceFrames() override;

  expert_parallel::TransportCaps caps() const override;
  absl::Status send(expert_parallel::PeerId peer, const expert_parallel::Message& message,
                    uint64_t cookie) override;
  void release(uint64_t receipt) override;
  void release_after(uint64_t receipt, kernels::Stream& reader) override;
  bool progress() override;

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override;

 private:
  struct Held {
    kernels::Buffer body;
    kernels::Event read;  // once released
  };
  void overwrite(Held& held);

  kernels::Device& device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::map<std::pair<expert_parallel::PeerId, uint64_t>, std::string> sending_;  // staged bodies
  std::map<uint64_t, Held> held_;                                                // by receipt
  std::vector<Held> reading_;  // released, and read until their event
};

}  // namespace brigade::tests
