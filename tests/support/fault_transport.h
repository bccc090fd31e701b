// Wraps a transport and harms what arrives through it: messages are dropped, doubled, damaged or
// held back (which also reorders them), peers are killed on demand. Decisions come from a seed, or
// from a function of the test. Same threads as the wrapped transport.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::tests {

struct Fault {
  bool drop = false;
  bool twice = false;
  bool damage = false;  // one bit flips
  absl::Duration delay = absl::ZeroDuration();
};

// Chances in [0, 1].
struct FaultRates {
  double drop = 0, twice = 0, damage = 0, delay = 0;
  absl::Duration longest_delay = absl::Milliseconds(3);
};

class FaultTransport : public expert_parallel::Transport,
                       public expert_parallel::TransportListener {
 public:
  FaultTransport(std::unique_ptr<expert_parallel::Transport> inner, uint64_t seed,
                 const FaultRates& rates = {});
  ~FaultTransport() override;

  // Replaces the rates: called for each arriving message.
  std::function<Fault(expert_parallel::PeerId, std::span<const std::byte>)> decide;
  // The link ends as if the far process had been killed: the listener hears of the loss.
  void kill_peer(expert_parallel::PeerId peer);

  struct Counts {
    int dropped = 0, doubled = 0, damaged = 0, delayed = 0;
  };
  const Counts& counts() const { return counts_; }

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
  void release(uint64_t receipt) override;
  void begin_group() override { inner_->begin_group(); }
  void end_group() override { inner_->end_group(); }
  void close_peer(expert_parallel::PeerId peer) override;
  bool progress() override;
  int event_fd() const override { return epoll_; }
  absl::StatusOr<bool> arm() override;
  absl::Status shut_down(absl::Time deadline) override { return inner_->shut_down(deadline); }
  uint64_t strangers_refused() const override { return inner_->strangers_refused(); }

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override {
    listener_->on_sent(peer, cookie, status);
  }
  void on_peer_lost(expert_parallel::PeerId peer, const absl::Status& why) override {
    listener_->on_peer_lost(peer, why);
  }

 private:
  struct FreeAligned {
    void operator()(std::byte* data) const { std::free(data); }
  };
  struct Held {
    expert_parallel::PeerId peer = 0;
    bool has_receipt = false;
    uint64_t receipt = 0;  // of the inner transport
    std::unique_ptr<std::byte, FreeAligned> copy;
    std::span<const std::byte> bytes;
    absl::Time due;
  };
  Fault by_rates();
  void hand_over(Held held);
  static void copy_into(Held& held);

  std::unique_ptr<expert_parallel::Transport> inner_;
  expert_parallel::TransportListener* listener_ = nullptr;
  std::mt19937_64 random_;
  const FaultRates rates_;
  Counts counts_;
  std::list<Held> waiting_;               // until due
  std::map<uint64_t, Held> handed_over_;  // by our receipt
  std::vector<expert_parallel::PeerId> killed_;
  uint64_t next_receipt_ = 1;
  int epoll_ = -1, timer_ = -1;
};

}  // namespace brigade::tests
