// A transport over another one that stands between it and its listener, for tests: every call goes
// through unchanged until a class derived from it says otherwise. Same threads as the wrapped one.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "expert_parallel/transport/transport.h"

namespace brigade::tests {

class TransportWrapper : public expert_parallel::Transport,
                         public expert_parallel::TransportListener {
 public:
  explicit TransportWrapper(std::unique_ptr<expert_parallel::Transport> inner)
      : inner_(std::move(inner)) {
    inner_->set_listener(this);
  }

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
                    uint64_t cookie) override {
    return inner_->send(peer, message, cookie);
  }
  void release(uint64_t receipt) override { inner_->release(receipt); }
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
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override {
    listener_->on_sent(peer, cookie, status);
  }
  void on_peer_lost(expert_parallel::PeerId peer, const absl::Status& why) override {
    listener_->on_peer_lost(peer, why);
  }

 protected:
  // A class that takes part in completions resets it in its own destructor: the last ones come
  // there.
  std::unique_ptr<expert_parallel::Transport> inner_;
  expert_parallel::TransportListener* listener_ = nullptr;
};

}  // namespace brigade::tests
