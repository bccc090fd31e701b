// One end of a transport in a test: records everything the transport says. drive() runs several
// nodes on the test's thread the way a progress thread does: progress, arm, sleep on the
// descriptors.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::tests {

class TransportNode : public expert_parallel::TransportListener {
 public:
  struct Received {
    expert_parallel::PeerId peer;
    uint64_t receipt;
    std::string bytes;                    // as they were on arrival
    std::span<const std::byte> in_place;  // valid until released
  };
  explicit TransportNode(std::unique_ptr<expert_parallel::Transport> transport);
  ~TransportNode() override { destroy(); }  // first: its last completions still come here

  void on_message(expert_parallel::PeerId peer, uint64_t receipt,
                  std::span<const std::byte> bytes) override;
  void on_sent(expert_parallel::PeerId peer, uint64_t cookie, const absl::Status& status) override;
  void on_peer_lost(expert_parallel::PeerId peer, const absl::Status& why) override;

  expert_parallel::Transport& transport() { return *transport_; }
  // Gives all buffers back that are still held.
  void release_all();
  absl::Status send(expert_parallel::PeerId peer, const std::string& text, uint64_t cookie);
  // Ends the node as a dying process would: no closing of links by the test.
  void destroy() { transport_.reset(); }
  bool alive() const { return transport_ != nullptr; }

  bool release_at_once = true;
  std::function<void(uint64_t cookie)> when_sent;
  std::vector<Received> received;
  std::map<uint64_t, absl::Status> sent;  // by cookie
  std::map<expert_parallel::PeerId, absl::Status> lost;
  int sent_twice = 0;

 private:
  std::unique_ptr<expert_parallel::Transport> transport_;
  std::map<uint64_t, std::string> texts_;  // memory of sends under way
};

struct NodeLink {
  expert_parallel::PeerId a, b;
};
// Links both ways over their addresses, as the control plane does.
NodeLink link_nodes(TransportNode& a, TransportNode& b);

// Runs until `done`; false when the deadline came first.
bool drive(const std::vector<TransportNode*>& nodes, const std::function<bool()>& done,
           absl::Duration at_most = absl::Seconds(20));
// Runs for a while in which nothing is expected to finish it.
void drive_for(const std::vector<TransportNode*>& nodes, absl::Duration duration);

}  // namespace brigade::tests
