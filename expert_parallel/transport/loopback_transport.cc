#include "expert_parallel/transport/loopback_transport.h"

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/aligned_block.h"
#include "expert_parallel/transport/bounded_queue.h"
#include "expert_parallel/transport/event_fd.h"
#include "kernels/core/check.h"

namespace brigade::expert_parallel {
namespace {

// The receiving half of a link end, which the far end writes into.
struct Inbox {
  Inbox(const TransportOptions& options, std::shared_ptr<EventFd> owner)
      : buffers(options.window, options.max_message_bytes),
        owner(std::move(owner)),
        arrived(options.window) {
    for (int i = 0; i < options.window; ++i) free.push_back(i);
  }
  struct Arrival {
    int buffer;
    size_t bytes;
  };
  const AlignedBlock buffers;
  const std::shared_ptr<EventFd> owner;  // told of arrivals

  std::mutex mutex;
  std::vector<int> free;  // credits of the far end
  BoundedQueue<Arrival> arrived;
  std::shared_ptr<EventFd> far_owner;  // told of credits and of closing; null until it connects
  bool closed = false;
};

void tell(const std::shared_ptr<EventFd>& event) {
  if (event != nullptr) event->signal();
}

}  // namespace

class LoopbackHub {
 public:
  std::string add(std::shared_ptr<Inbox> inbox) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::string name = absl::StrCat("loopback:", next_++);
    inboxes_[name] = std::move(inbox);
    return name;
  }
  std::shared_ptr<Inbox> find(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = inboxes_.find(name);
    return found == inboxes_.end() ? nullptr : found->second.lock();
  }
  void remove(const std::string& name) {
    std::lock_guard<std::mutex> lock(mutex_);
    inboxes_.erase(name);
  }

 private:
  std::mutex mutex_;
  uint64_t next_ = 1;
  std::map<std::string, std::weak_ptr<Inbox>> inboxes_;
};

namespace {

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(std::shared_ptr<LoopbackHub> hub, const TransportOptions& options)
      : hub_(std::move(hub)), options_(options), event_(std::make_shared<EventFd>()) {}
  ~LoopbackTransport() override { (void)shut_down(absl::InfinitePast()); }

  TransportCaps caps() const override {
    return {.max_message_bytes = options_.max_message_bytes,
            .send_queue = options_.send_queue,
            .grouped_posting = true};
  }
  void set_listener(TransportListener* listener) override { listener_ = listener; }

  absl::StatusOr<PeerId> open_link() override {
    const PeerId peer = next_peer_++;
    Link& link = links_[peer];
    link.inbox = std::make_shared<Inbox>(options_, event_);
    link.queue = BoundedQueue<Pending>(options_.send_queue);
    link.address = hub_->add(link.inbox);
    scratch_.reserve(links_.size());
    // What links can have outstanding, so that nothing grows while they run.
    sent_.reserve(links_.size() * options_.send_queue);
    reporting_.reserve(links_.size() * options_.send_queue);
    return peer;
  }

  absl::StatusOr<std::string> address(PeerId peer) const override {
    const auto found = links_.find(peer);
    if (found == links_.end()) return absl::NotFoundError(absl::StrCat("no link ", peer));
    return found->second.address;
  }

  absl::Status connect(PeerId peer, const std::string& remote_address) override {
    Link* link = open(peer);
    if (link == nullptr) return absl::UnavailableError(absl::StrCat("link ", peer, " is closed"));
    link->far = hub_->find(remote_address);
    if (link->far == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("no loopback address '", remote_address, "'"));
    }
    std::lock_guard<std::mutex> lock(link->far->mutex);
    link->far->far_owner = event_;
    dirty_ = true;
    return absl::OkStatus();
  }

  absl::Status send(PeerId peer, const Message& message, uint64_t cookie) override {
    Link* link = open(peer);
    if (link == nullptr || link->far == nullptr || link->lost) {
      return absl::UnavailableError(absl::StrCat("link ", peer, " is not connected"));
    }
    if (message.bytes() > options_.max_message_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("message of ", message.bytes(),
                                                     " bytes, limit ", options_.max_message_bytes));
    }
    if (link->queue.full()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("link ", peer, ": ", link->queue.size(), " sends are waiting"));
    }
    link->queue.push({message, cookie});
    dirty_ = true;
    return absl::OkStatus();
  }

  void release(uint64_t receipt) override {
    const auto found = links_.find(static_cast<PeerId>(receipt >> 32));
    CHECK(found != links_.end() && found->second.receipts > 0);
    Link& link = found->second;
    --link.receipts;
    std::shared_ptr<EventFd> sender;
    {
      std::lock_guard<std::mutex> lock(link.inbox->mutex);
      link.inbox->free.push_back(static_cast<int>(receipt & 0xffffffff));
      sender = link.inbox->far_owner;
    }
    tell(sender);
  }

  void begin_group() override {}
  void end_group() override {}

  void close_peer(PeerId peer) override {
    Link* link = open(peer);
    if (link == nullptr) return;
    end_link(*link, absl::CancelledError(absl::StrCat("link ", peer, " was closed")), peer);
    link->open = false;
    hub_->remove(link->address);
    std::shared_ptr<EventFd> far_owner;
    {
      std::lock_guard<std::mutex> lock(link->inbox->mutex);
      link->inbox->closed = true;
      far_owner = link->inbox->far_owner;
    }
    tell(far_owner);
    if (link->far != nullptr) tell(link->far->owner);
    dirty_ = true;
  }

  bool progress() override {
    event_->clear();
    dirty_ = false;
    bool moved = false;
    std::vector<PeerId>& peers = scratch_;
    peers.clear();
    for (const auto& [peer, link] : links_) peers.push_back(peer);
    for (const PeerId peer : peers) {
      moved |= deliver(peer);
      if (Link* link = open(peer)) moved |= pump(peer, *link);
      moved |= report_loss(peer);
    }
    moved |= report_sent();
    std::erase_if(
        links_, [](const auto& entry) { return !entry.second.open && entry.second.receipts == 0; });
    return moved || dirty_;
  }

  int event_fd() const override { return event_->fd(); }
  absl::StatusOr<bool> arm() override { return !dirty_; }

  absl::Status shut_down(absl::Time) override {
    std::vector<PeerId> peers;
    for (const auto& [peer, link] : links_) peers.push_back(peer);
    for (const PeerId peer : peers) close_peer(peer);
    report_sent();
    return absl::OkStatus();
  }

  uint64_t strangers_refused() const override { return 0; }

 private:
  struct Pending {
    Message message;
    uint64_t cookie;
  };
  struct Sent {
    PeerId peer;
    uint64_t cookie;
    absl::Status status;
  };
  struct Link {
    std::string address;
    std::shared_ptr<Inbox> inbox;  // ours
    std::shared_ptr<Inbox> far;    // null until connected
    BoundedQueue<Pending> queue;
    int receipts = 0;  // buffers that the listener holds
    bool open = true;
    bool lost = false;
  };

  Link* open(PeerId peer) {
    const auto found = links_.find(peer);
    return found != links_.end() && found->second.open ? &found->second : nullptr;
  }

  bool deliver(PeerId peer) {
    bool moved = false;
    for (Link* link = open(peer); link != nullptr; link = open(peer)) {
      Inbox::Arrival arrival;
      {
        std::lock_guard<std::mutex> lock(link->inbox->mutex);
        if (link->inbox->arrived.empty()) break;
        arrival = link->inbox->arrived.pop();
      }
      ++link->receipts;
      moved = true;
      listener_->on_message(peer, uint64_t(peer) << 32 | static_cast<uint32_t>(arrival.buffer),
                            {link->inbox->buffers.at(arrival.buffer), arrival.bytes});
    }
    return moved;
  }

  // Copies waiting sends into the far inbox while it has free buffers.
  bool pump(PeerId peer, Link& link) {
    bool moved = false;
    while (!link.queue.empty() && link.far != nullptr && !link.lost) {
      Inbox& far = *link.far;
      int buffer;
      {
        std::lock_guard<std::mutex> lock(far.mutex);
        if (far.closed || far.free.empty()) break;
        buffer = far.free.back();
        far.free.pop_back();
      }
      const Pending pending = link.queue.pop();
      const Message& message = pending.message;
      std::byte* to = far.buffers.at(buffer);
      if (!message.head.empty()) std::memcpy(to, message.head.data(), message.head.size());
      if (!message.body.empty()) {
        std::memcpy(to + message.head.size(), message.body.data(), message.body.size());
      }
      {
        std::lock_guard<std::mutex> lock(far.mutex);
        far.arrived.push({buffer, message.bytes()});
      }
      tell(far.owner);
      sent_.push_back({peer, pending.cookie, absl::OkStatus()});
      moved = true;
    }
    return moved;
  }

  bool report_loss(PeerId peer) {
    Link* link = open(peer);
    if (link == nullptr || link->far == nullptr || link->lost) return false;
    {
      std::lock_guard<std::mutex> lock(link->far->mutex);
      if (!link->far->closed) return false;
    }
    deliver(peer);  // what arrived before the end
    link = open(peer);
    if (link == nullptr) return true;
    const absl::Status why =
        absl::UnavailableError(absl::StrCat("link ", peer, ": the peer has gone"));
    link->lost = true;
    end_link(*link, why, peer);
    listener_->on_peer_lost(peer, why);
    return true;
  }

  void end_link(Link& link, const absl::Status& status, PeerId peer) {
    while (!link.queue.empty()) sent_.push_back({peer, link.queue.pop().cookie, status});
  }

  bool report_sent() {
    if (sent_.empty()) return false;
    reporting_.swap(sent_);
    for (const Sent& sent : reporting_) listener_->on_sent(sent.peer, sent.cookie, sent.status);
    reporting_.clear();
    return true;
  }

  const std::shared_ptr<LoopbackHub> hub_;
  const TransportOptions options_;
  const std::shared_ptr<EventFd> event_;
  TransportListener* listener_ = nullptr;
  PeerId next_peer_ = 1;
  std::map<PeerId, Link> links_;
  std::vector<Sent> sent_, reporting_;
  std::vector<PeerId> scratch_;
  bool dirty_ = false;  // own calls have made work for progress()
};

}  // namespace

std::shared_ptr<LoopbackHub> make_loopback_hub() { return std::make_shared<LoopbackHub>(); }

std::unique_ptr<Transport> make_loopback_transport(std::shared_ptr<LoopbackHub> hub,
                                                   const TransportOptions& options) {
  return std::make_unique<LoopbackTransport>(std::move(hub), options);
}

}  // namespace brigade::expert_parallel
