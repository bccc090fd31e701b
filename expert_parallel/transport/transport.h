// Messages between one process and its peers: the small interface that loopback, UCX and NCCL fit
// behind. It moves bytes; what they mean (frames, sessions, incarnations) is checked above it.
//
// Thread: one progress thread owns a transport and makes every call. Nothing here waits, except
// shut_down(), which has a deadline. Listener calls come only out of progress().
//
// Flow: a link posts `window` receives when it is made, before the peer learns its address, so
// receives are posted before sends. Each message in flight holds one of the receiver's buffers (a
// credit); release() gives it back. Sends without a credit wait in a bounded queue. Credits travel
// without needing credits, so two full queues cannot lock each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "expert_parallel/transport/frame.h"

namespace brigade::kernels {
class Stream;
}

namespace brigade::expert_parallel {

// Names a link of one transport; never used again after it is closed.
using PeerId = uint32_t;

struct TransportCaps {
  size_t max_message_bytes = 0;  // head and body together
  int send_queue = 0;            // of one link: accepted and not completed
  bool device_memory = false;    // a body may lie in device memory
  // Sizes must be known on the host before data moves (a padded, device-counted mode says false).
  bool counts_on_host = true;
  // Sends between begin_group() and end_group() start together, in the order they were posted per
  // peer.
  bool grouped_posting = false;
};

struct TransportOptions {
  size_t max_message_bytes = kMaxFrameBytes;
  int window = 8;       // receive buffers per link
  int send_queue = 64;  // sends of one link that were accepted and have not completed
  // A silent peer on this host is noticed after this long; the control plane is usually faster.
  absl::Duration keepalive = absl::Milliseconds(500);
};

// A message is head then body; body may be empty. The head (header and index) is always host
// memory: where the body is device memory, the head is what the receiver's host needs to place it.
struct Message {
  std::span<const std::byte> head;
  std::span<const std::byte> body;
  // Instead of `body`, where caps().device_memory: memory of the transport's device, complete once
  // what was enqueued on `written_by` before send() has run (null: complete). Host code on neither
  // end reads it.
  std::span<const std::byte> device_body;
  kernels::Stream* written_by = nullptr;
  size_t bytes() const { return head.size() + body.size() + device_body.size(); }
};

class TransportListener {
 public:
  virtual ~TransportListener() = default;
  // `bytes` (64-byte aligned) stay valid until release(receipt), even after the peer is lost or
  // closed.
  virtual void on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) = 0;
  // A message with a body in device memory, which has arrived: streams may read it from now on.
  // Both parts stay valid until its release. Comes only where caps().device_memory.
  virtual void on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                                 std::span<const std::byte> device_body);
  // The message's memory may be reused from now on. Exactly once per accepted send. OK means handed
  // over, not received: an answer is the only proof of that.
  virtual void on_sent(PeerId peer, uint64_t cookie, const absl::Status& status) = 0;
  // At most once per link, never after close_peer(). Close it then.
  virtual void on_peer_lost(PeerId peer, const absl::Status& why) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual TransportCaps caps() const = 0;
  // Before the first link. The listener outlives the transport.
  virtual void set_listener(TransportListener* listener) = 0;

  // Makes one end of a link, its receives posted. RESOURCE_EXHAUSTED when memory is short.
  virtual absl::StatusOr<PeerId> open_link() = 0;
  // Opaque bytes for the peer's connect(): travels over the control plane, at most
  // kMaxAddressBytes.
  virtual absl::StatusOr<std::string> address(PeerId peer) const = 0;
  // Gives the link its far end. INVALID_ARGUMENT for bytes that are no address of this transport.
  virtual absl::Status connect(PeerId peer, const std::string& remote_address) = 0;

  // Accepts a message for sending; its memory belongs to the transport until on_sent(cookie).
  // RESOURCE_EXHAUSTED: the queue is full, nothing was taken, try after an on_sent.
  // INVALID_ARGUMENT: too large. UNAVAILABLE: the peer is lost, closed or not connected.
  virtual absl::Status send(PeerId peer, const Message& message, uint64_t cookie) = 0;
  // Returns a received buffer, and with it the sender's credit.
  virtual void release(uint64_t receipt) = 0;
  // The same, while what was enqueued on `reader` so far still reads the device body: nothing is
  // written there before that has run.
  virtual void release_after(uint64_t receipt, kernels::Stream& reader);
  // Sends in between may be started together at end_group(). Groups do not nest.
  virtual void begin_group() = 0;
  virtual void end_group() = 0;

  // Ends a link at once, also with transfers under way. Sends not yet completed end with CANCELLED
  // in a later progress(). The far end notices when this process ends; while it lives on, the
  // control plane tells.
  virtual void close_peer(PeerId peer) = 0;

  // Moves things on and calls the listener. True when it did something: call again before sleeping.
  virtual bool progress() = 0;
  // Becomes readable when progress() has something to do, once arm() said true.
  virtual int event_fd() const = 0;
  // True: sleep on event_fd() is safe. False: something has come up, call progress() first.
  virtual absl::StatusOr<bool> arm() = 0;

  // Closes all links and completes every send. DEADLINE_EXCEEDED names how many would not end;
  // their memory must then never be reused.
  virtual absl::Status shut_down(absl::Time deadline) = 0;

  // Messages that belonged to no link, and were thrown away: of outsiders, and what a peer sent
  // after its link was closed. Any thread.
  virtual uint64_t strangers_refused() const = 0;
};

inline constexpr size_t kMaxAddressBytes = 4096;

}  // namespace brigade::expert_parallel
