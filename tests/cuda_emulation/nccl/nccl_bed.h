// NCCL links inside one test process: emulated devices, the transport over the stand-in, and host
// bodies over it for suites that know no device memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/nccl_module.h"
#include "kernels/core/device_cuda.h"

namespace brigade::tests {

// An emulated device. Eight of them, whatever the environment says.
std::unique_ptr<kernels::Device> make_emulated_device(int ordinal);

std::unique_ptr<expert_parallel::Transport> make_nccl_transport(
    std::unique_ptr<expert_parallel::Transport> host, kernels::Device& device,
    const expert_parallel::NcclOptions& options);

// Takes bodies in host memory: copies them to its device and, at the other end, back.
class StagedBodies : public expert_parallel::Transport, public expert_parallel::TransportListener {
 public:
  StagedBodies(std::unique_ptr<kernels::Device> device,
               std::unique_ptr<expert_parallel::Transport> inner);
  ~StagedBodies() override;

  expert_parallel::TransportCaps caps() const override { return inner_->caps(); }
  void set_listener(expert_parallel::TransportListener* listener) override { listener_ = listener; }
  absl::StatusOr<expert_parallel::PeerId> open_link() override { return inner_->open_link(); }
  absl::StatusOr<std::string> address(expert_parallel::PeerId peer) const override {
    return inner_->address(peer);
  }
  absl::Status connect(expert_parallel::PeerId peer, const std::string& remote) override {
    return inner_->connect(peer, remote);
  }
  absl::Status send(expert_parallel::PeerId peer, const expert_parallel::Message& message,
                    uint64_t cookie) override;
  void recycle(expert_parallel::PeerId peer, uint64_t cookie);
  void release(uint64_t receipt) override;
  void begin_group() override { inner_->begin_group(); }
  void end_group() override { inner_->end_group(); }
  void close_peer(expert_parallel::PeerId peer) override { inner_->close_peer(peer); }
  bool progress() override { return inner_->progress(); }
  int event_fd() const override { return inner_->event_fd(); }
  absl::StatusOr<bool> arm() override { return inner_->arm(); }
  absl::Status shut_down(absl::Time deadline) override { return inner_->shut_down(deadline); }
  uint64_t strangers_refused() const override { return inner_->strangers_refused(); }

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override {
    listener_->on_message(peer, receipt, bytes);
  }
  void on_device_message(expert_parallel::PeerId peer, uint64_t receipt,
                         std::span<const std::byte> head,
                         std::span<const std::byte> device_body) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override;
  void on_peer_lost(expert_parallel::PeerId peer, const absl::Status& why) override {
    listener_->on_peer_lost(peer, why);
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  const std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
  std::map<std::pair<expert_parallel::PeerId, uint64_t>, kernels::Buffer> sending_;
  std::vector<kernels::Buffer> spare_;  // freeing one would wait for the device
  std::map<uint64_t, std::unique_ptr<std::byte, Free>> received_;  // by receipt
  expert_parallel::TransportListener* listener_ = nullptr;
  std::unique_ptr<expert_parallel::Transport> inner_;
};

}  // namespace brigade::tests
