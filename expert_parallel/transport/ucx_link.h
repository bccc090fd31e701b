// One end of a UCX link: posted receives, sends under way, credits. Plain state; ucx_receives.cc
// and ucx_sends.cc move it, UcxTransport owns it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/bounded_queue.h"
#include "expert_parallel/transport/transport.h"

struct ucp_ep;

namespace brigade::expert_parallel::ucx {

// Tag: kind (4 bits) | credits returned (12) | nonce (16) | link at the receiver (32).
enum TagKind : uint64_t { kData = 1, kCredit = 2 };
constexpr uint64_t kCreditsMask = 0xfffull << 48;
constexpr uint64_t make_tag(TagKind kind, uint32_t credits, uint16_t nonce, uint32_t link) {
  return uint64_t(kind) << 60 | uint64_t(credits) << 48 | uint64_t(nonce) << 32 | link;
}
constexpr uint32_t tag_credits(uint64_t tag) { return (tag & kCreditsMask) >> 48; }
constexpr int kMaxWindow = 0xfff;

struct Link;
class Worker;

// What has happened and the listener has not heard yet; callbacks of UCX write here.
struct Outcomes {
  struct Arrival {
    Link* link;
    int buffer;
    size_t bytes;
  };
  struct Sent {
    PeerId peer;
    uint64_t cookie;
    absl::Status status;
  };
  std::vector<Arrival> arrivals;
  std::vector<Sent> sent;
  bool failed = false;  // some link has a failure to report
  bool empty() const { return arrivals.empty() && sent.empty() && !failed; }
};

// As UCX describes the pieces of a message.
struct MessagePart {
  void* data;
  size_t bytes;
};

struct ReceiveSlot {
  Link* link = nullptr;
  int buffer = -1;          // -1: a slot for credit messages
  void* request = nullptr;  // set while posted and cancellable
  bool posted = false;
};

struct SendSlot {
  Link* link = nullptr;
  Message message;
  uint64_t cookie = 0;
  MessagePart parts[2];
};

// Lives until it is closed and UCX and the listener have given everything back.
struct Link {
  Link(Worker& worker, Outcomes& outcomes, PeerId peer, const TransportOptions& options,
       uint16_t nonce)
      : worker(worker),
        outcomes(outcomes),
        peer(peer),
        nonce(nonce),
        window(options.window),
        max_message_bytes(options.max_message_bytes),
        buffers(options.window, options.max_message_bytes),
        receives(2 * options.window + 1),
        sends(options.send_queue),
        waiting(options.send_queue) {
    for (int i = 0; i < 2 * options.window + 1; ++i) {
      receives[i] = {.link = this, .buffer = i < options.window ? i : -1};
    }
    for (SendSlot& slot : sends) {
      slot.link = this;
      free_sends.push_back(&slot);
    }
  }
  bool usable() const { return open && endpoint != nullptr && failure.ok(); }
  bool given_back() const {
    return posted == 0 && in_flight == 0 && receipts == 0 && unreported == 0 && closing == nullptr;
  }
  // The first failure counts; the listener hears of it in the next progress().
  void fail(const absl::Status& why) {
    if (!open || !failure.ok()) return;
    failure = why;
    outcomes.failed = true;
  }

  Worker& worker;
  Outcomes& outcomes;
  const PeerId peer;
  const uint16_t nonce;
  const int window;
  const size_t max_message_bytes;
  const AlignedBlock buffers;
  std::vector<ReceiveSlot> receives;
  std::vector<SendSlot> sends;
  std::vector<SendSlot*> free_sends;
  BoundedQueue<SendSlot*> waiting;  // for a credit
  ucp_ep* endpoint = nullptr;
  void* closing = nullptr;
  uint32_t far_link = 0;
  uint16_t far_nonce = 0;
  size_t far_max_bytes = 0;
  int credits = 0;  // messages that we may send
  int owed = 0;     // credits not yet returned
  int posted = 0, in_flight = 0, receipts = 0;
  int unreported = 0;  // sends that ended, the listener has not heard yet
  bool open = true;
  absl::Status failure;
  bool failure_reported = false;
};

}  // namespace brigade::expert_parallel::ucx
