#include "tests/support/transport_node.h"

#include <poll.h>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace brigade::tests {

using expert_parallel::PeerId;

TransportNode::TransportNode(std::unique_ptr<expert_parallel::Transport> transport)
    : transport_(std::move(transport)) {
  transport_->set_listener(this);
}

void TransportNode::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  received.push_back({peer, receipt,
                      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                      bytes});
  if (release_at_once) {
    transport_->release(receipt);
    received.back().receipt = 0;
  }
}

void TransportNode::on_sent(PeerId, uint64_t cookie, const absl::Status& status) {
  if (!sent.emplace(cookie, status).second) ++sent_twice;
  texts_.erase(cookie);
  if (when_sent) when_sent(cookie);
}

void TransportNode::on_peer_lost(PeerId peer, const absl::Status& why) {
  EXPECT_TRUE(lost.emplace(peer, why).second) << "peer " << peer << " was lost twice";
}

void TransportNode::release_all() {
  for (Received& message : received) {
    if (message.receipt != 0) transport_->release(message.receipt);
    message.receipt = 0;
  }
}

absl::Status TransportNode::send(PeerId peer, const std::string& text, uint64_t cookie) {
  std::string& kept = texts_[cookie] = text;
  const auto bytes = std::as_bytes(std::span(kept.data(), kept.size()));
  const size_t head = bytes.size() / 3;  // an uneven split, so that both parts are exercised
  const absl::Status status =
      transport_->send(peer, {bytes.first(head), bytes.subspan(head)}, cookie);
  if (!status.ok()) texts_.erase(cookie);
  return status;
}

NodeLink link_nodes(TransportNode& a, TransportNode& b) {
  const absl::StatusOr<PeerId> at_a = a.transport().open_link(), at_b = b.transport().open_link();
  EXPECT_TRUE(at_a.ok()) << at_a.status();
  EXPECT_TRUE(at_b.ok()) << at_b.status();
  const absl::Status to_b = a.transport().connect(*at_a, *b.transport().address(*at_b));
  const absl::Status to_a = b.transport().connect(*at_b, *a.transport().address(*at_a));
  EXPECT_TRUE(to_b.ok()) << to_b;
  EXPECT_TRUE(to_a.ok()) << to_a;
  return {*at_a, *at_b};
}

bool drive(const std::vector<TransportNode*>& nodes, const std::function<bool()>& done,
           absl::Duration at_most) {
  const absl::Time deadline = absl::Now() + at_most;
  while (!done()) {
    bool moved = false;
    for (TransportNode* node : nodes) {
      if (node->alive()) moved |= node->transport().progress();
    }
    if (moved) continue;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    std::vector<pollfd> descriptors;
    bool armed = true;
    for (TransportNode* node : nodes) {
      if (!node->alive()) continue;
      const absl::StatusOr<bool> ready = node->transport().arm();
      EXPECT_TRUE(ready.ok()) << ready.status();
      armed &= ready.ok() && *ready;
      descriptors.push_back({node->transport().event_fd(), POLLIN, 0});
    }
    if (armed)
      poll(descriptors.data(), descriptors.size(),
           static_cast<int>(absl::ToInt64Milliseconds(left) + 1));
  }
  return true;
}

void drive_for(const std::vector<TransportNode*>& nodes, absl::Duration duration) {
  drive(
      nodes, [] { return false; }, duration);
}

}  // namespace brigade::tests
