// Device bodies over a host transport, for devices on the CPU: bodies are copied out of and into
// device memory at the ends, so that code which moves rows in device memory only is tested without
// a GPU. What a reader has released is overwritten as soon as its stream lets go. Threads as the
// wrapped transport's.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "expert_parallel/transport/transport.h"
#include "kernels/core/device.h"

namespace brigade::tests {

class DeviceFrames : public expert_parallel::Transport, public expert_parallel::TransportListener {
 public:
  DeviceFrames(std::unique_ptr<expert_parallel::Transport> inner, kernels::Device& device);
  ~DeviceFrames() override;

  expert_parallel::TransportCaps caps() const override;
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
  void release(uint64_t receipt) override;
  void release_after(uint64_t receipt, kernels::Stream& reader) override;
  void begin_group() override { inner_->begin_group(); }
  void end_group() override { inner_->end_group(); }
  void close_peer(expert_parallel::PeerId peer) override { inner_->close_peer(peer); }
  bool progress() override;
  int event_fd() const override { return inner_->event_fd(); }
  absl::StatusOr<bool> arm() override { return inner_->arm(); }
  absl::Status shut_down(absl::Time deadline) override { return inner_->shut_down(deadline); }
  uint64_t strangers_refused() const override { return inner_->strangers_refused(); }

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override;
  void on_peer_lost(expert_parallel::PeerId peer, const absl::Status& why) override {
    listener_->on_peer_lost(peer, why);
  }

 private:
  struct Held {
    kernels::Buffer body;
    kernels::Event read;  // once released
  };
  void overwrite(Held& held);

  const std::unique_ptr<expert_parallel::Transport> inner_;
  kernels::Device& device_;
  std::unique_ptr<kernels::Stream> stream_;
  expert_parallel::TransportListener* listener_ = nullptr;
  std::map<std::pair<expert_parallel::PeerId, uint64_t>, std::string> sending_;  // staged bodies
  std::map<uint64_t, Held> held_;  // by receipt
  std::vector<Held> reading_;      // released, and read until their event
};

}  // namespace brigade::tests
