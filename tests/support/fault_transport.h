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
#include "tests/support/transport_wrapper.h"

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

class FaultTransport : public TransportWrapper {
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

  void release(uint64_t receipt) override;
  void close_peer(expert_parallel::PeerId peer) override;
  bool progress() override;
  int event_fd() const override { return epoll_; }
  absl::StatusOr<bool> arm() override;

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;

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
