#include "expert_parallel/transport/ucx_transport.h"

#include <ucp/api/ucp.h>
#include <atomic>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/link_address.h"
#include "expert_parallel/transport/ucx_link.h"
#include "expert_parallel/transport/ucx_receives.h"
#include "expert_parallel/transport/ucx_sends.h"
#include "expert_parallel/transport/ucx_wakeup.h"
#include "expert_parallel/transport/ucx_worker.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using ucx::Link;

// How long, and of how many links, a closed link's late messages are still counted.
constexpr absl::Duration kLeftoverLife = absl::Seconds(30);
constexpr size_t kMaxLeftovers = 32;

class UcxTransport final : public Transport {
 public:
  explicit UcxTransport(const UcxOptions& options)
      : options_(options.transport), host_(HostIdentity::read()), random_(std::random_device{}()) {}
  ~UcxTransport() override;
  absl::Status start(const UcxOptions& options);

  TransportCaps caps() const override {
    return {.max_message_bytes = options_.max_message_bytes, .send_queue = options_.send_queue};
  }
  void set_listener(TransportListener* listener) override { listener_ = listener; }
  absl::StatusOr<PeerId> open_link() override;
  absl::StatusOr<std::string> address(PeerId peer) const override;
  absl::Status connect(PeerId peer, const std::string& remote_address) override;
  absl::Status send(PeerId peer, const Message& message, uint64_t cookie) override;
  void release(uint64_t receipt) override;
  void begin_group() override {}
  void end_group() override {}
  void close_peer(PeerId peer) override;
  bool progress() override;
  int event_fd() const override { return wakeup_.fd(); }
  absl::StatusOr<bool> arm() override;
  absl::Status shut_down(absl::Time deadline) override;
  uint64_t strangers_refused() const override { return strangers_; }
  std::string lanes(PeerId peer) const;

 private:
  Link* find(PeerId peer) const;  // an open one
  bool hand_out();
  void report_failures();
  void count_strangers();
  void reclaim();
  void drop_leftovers(size_t keep, absl::Time now);
  // Sends that have not completed, and links that UCX still works on.
  int unfinished(bool* closing) const;

  const TransportOptions options_;
  const HostIdentity host_;
  std::mt19937_64 random_;
  TransportListener* listener_ = nullptr;
  PeerId next_peer_ = 1;
  ucx::Outcomes outcomes_;
  struct Connection {
    std::unique_ptr<Link> link;
    std::unique_ptr<ucx::Worker> worker;  // last: it goes before the link that it writes into
  };
  // The worker of a link that was closed: what its peer still sends is counted as a stranger's.
  struct Leftover {
    std::unique_ptr<ucx::Worker> worker;
    absl::Time until;
  };
  ucx::Context context_;
  ucx::Wakeup wakeup_;
  std::map<PeerId, Connection> links_;
  std::deque<Leftover> leftovers_;  // oldest first
  std::vector<ucx::Outcomes::Arrival> handing_out_;
  std::vector<ucx::Outcomes::Sent> reporting_;
  bool closed_ = false;  // some link waits to be reclaimed
  bool started_ = false;
  std::atomic<uint64_t> strangers_{0};
};

absl::Status UcxTransport::start(const UcxOptions& options) {
  if (options_.window < 1 || options_.window > ucx::kMaxWindow || options_.send_queue < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport window of ", options_.window, " and queue of ", options_.send_queue,
                     ": they go from 1, the window to ", ucx::kMaxWindow));
  }
  RETURN_IF_ERROR(context_.start(options));
  RETURN_IF_ERROR(wakeup_.start());
  started_ = true;
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  if (started_) (void)shut_down(absl::Now() + absl::Seconds(2));
}

Link* UcxTransport::find(PeerId peer) const {
  const auto found = links_.find(peer);
  return found != links_.end() && found->second.link->open ? found->second.link.get() : nullptr;
}

absl::StatusOr<PeerId> UcxTransport::open_link() {
  auto worker = std::make_unique<ucx::Worker>();
  RETURN_IF_ERROR(worker->start(context_));
  RETURN_IF_ERROR(wakeup_.add(worker->event_fd()));
  const PeerId peer = next_peer_++;
  auto link =
      std::make_unique<Link>(*worker, outcomes_, peer, options_, static_cast<uint16_t>(random_()));
  Connection& connection = links_[peer] = {std::move(link), std::move(worker)};
  // What one link can have outstanding, so that nothing grows while it runs.
  const size_t arrivals = links_.size() * options_.window;
  const size_t sends = links_.size() * options_.send_queue;
  outcomes_.arrivals.reserve(arrivals);
  handing_out_.reserve(arrivals);
  outcomes_.sent.reserve(sends);
  reporting_.reserve(sends);
  ucx::post_receives(*connection.link);
  return peer;
}

absl::StatusOr<std::string> UcxTransport::address(PeerId peer) const {
  const Link* link = find(peer);
  if (link == nullptr) return absl::NotFoundError(absl::StrCat("no link ", peer));
  return encode_link_address(
      {.link = peer,
       .nonce = link->nonce,
       .window = static_cast<uint16_t>(options_.window),
       .max_message_bytes = static_cast<uint32_t>(options_.max_message_bytes),
       .host = host_,
       .worker = link->worker.address(),
       .worker_net = link->worker.address_net()});
}

absl::Status UcxTransport::connect(PeerId peer, const std::string& remote_address) {
  Link* link = find(peer);
  if (link == nullptr) return absl::UnavailableError(absl::StrCat("link ", peer, " is closed"));
  if (link->endpoint != nullptr)
    return absl::FailedPreconditionError(absl::StrCat("link ", peer, " is connected"));
  ASSIGN_OR_RETURN(const LinkAddress remote, decode_link_address(remote_address));
  RETURN_IF_ERROR(link->worker.connect(
      *link, may_share_memory(host_, remote.host) ? remote.worker : remote.worker_net));
  link->far_link = remote.link;
  link->far_nonce = remote.nonce;
  link->far_max_bytes = remote.max_message_bytes;
  link->credits += remote.window;
  ucx::send_credits(*link);  // none; but the lanes are made now, and an early end is seen
  return absl::OkStatus();
}

absl::Status UcxTransport::send(PeerId peer, const Message& message, uint64_t cookie) {
  Link* link = find(peer);
  if (link == nullptr || !link->usable()) {
    return absl::UnavailableError(absl::StrCat("link ", peer, " is not connected"));
  }
  return ucx::send(*link, message, cookie);
}

void UcxTransport::release(uint64_t receipt) {
  const auto found = links_.find(static_cast<PeerId>(receipt >> 32));
  CHECK(found != links_.end() && found->second.link->receipts > 0);
  Link& link = *found->second.link;
  --link.receipts;
  if (!link.open || !link.failure.ok()) return;
  ucx::post_again(link, static_cast<int>(receipt & 0xffffffff));
  ++link.owed;
  // By themselves once half the window is owed; else they ride on the next message.
  if (link.usable() && link.owed >= (options_.window + 1) / 2) ucx::send_credits(link);
}

void UcxTransport::close_peer(PeerId peer) {
  Link* link = find(peer);
  if (link == nullptr) return;
  link->open = false;
  closed_ = true;
  ucx::cancel_waiting(*link, absl::CancelledError(absl::StrCat("link ", peer, " was closed")));
  ucx::cancel_receives(*link);
  link->worker.disconnect(*link);
}

bool UcxTransport::progress() {
  bool moved = false;
  for (const auto& [peer, connection] : links_) moved |= connection.worker->progress();
  for (const Leftover& leftover : leftovers_) moved |= leftover.worker->progress();
  for (const auto& [peer, connection] : links_) ucx::send_waiting(*connection.link);
  moved |= hand_out();
  if (outcomes_.failed) report_failures();
  count_strangers();
  if (closed_) reclaim();
  if (!leftovers_.empty()) drop_leftovers(kMaxLeftovers, absl::Now());
  return moved;
}

void UcxTransport::count_strangers() {
  for (const auto& [peer, connection] : links_) {
    strangers_ += ucx::refuse_strangers(*connection.worker, [&](PeerId named) -> Link* {
      return named == peer ? connection.link.get() : nullptr;
    });
  }
  for (const Leftover& leftover : leftovers_) {
    strangers_ += ucx::refuse_strangers(*leftover.worker, [](PeerId) { return nullptr; });
  }
}

void UcxTransport::drop_leftovers(size_t keep, absl::Time now) {
  while (!leftovers_.empty() && (leftovers_.size() > keep || leftovers_.front().until <= now)) {
    wakeup_.remove(leftovers_.front().worker->event_fd());
    leftovers_.pop_front();
  }
}

bool UcxTransport::hand_out() {
  if (outcomes_.arrivals.empty() && outcomes_.sent.empty()) return false;
  handing_out_.swap(outcomes_.arrivals);
  for (const auto& [link, buffer, bytes] : handing_out_) {
    if (!link->open) {
      --link->receipts;  // closed meanwhile: nobody wants it
      continue;
    }
    const uint64_t receipt = uint64_t(link->peer) << 32 | static_cast<uint32_t>(buffer);
    listener_->on_message(link->peer, receipt, {link->buffers.at(buffer), bytes});
  }
  handing_out_.clear();
  reporting_.swap(outcomes_.sent);
  for (const auto& [peer, cookie, status] : reporting_) {
    --links_.at(peer).link->unreported;
    listener_->on_sent(peer, cookie, status);
  }
  reporting_.clear();
  return true;
}

void UcxTransport::report_failures() {
  outcomes_.failed = false;
  std::vector<Link*> failed;
  for (const auto& [peer, connection] : links_) {
    Link& link = *connection.link;
    if (link.open && !link.failure.ok() && !link.failure_reported) failed.push_back(&link);
  }
  for (Link* link : failed) {
    link->failure_reported = true;
    ucx::cancel_waiting(*link, link->failure);
    ucx::cancel_receives(*link);
    listener_->on_peer_lost(link->peer, link->failure);
  }
}

void UcxTransport::reclaim() {
  closed_ = false;
  for (auto at = links_.begin(); at != links_.end();) {
    Link& link = *at->second.link;
    const bool waits = !link.open;
    const bool gone = waits && link.worker.disconnected(link) && link.given_back();
    if (gone) leftovers_.push_back({std::move(at->second.worker), absl::Now() + kLeftoverLife});
    at = gone ? links_.erase(at) : std::next(at);
    closed_ |= waits && !gone;
  }
}

absl::StatusOr<bool> UcxTransport::arm() {
  if (!outcomes_.empty()) return false;
  for (const auto& [peer, connection] : links_) {
    ASSIGN_OR_RETURN(const bool armed, connection.worker->arm());
    if (!armed) return false;
  }
  for (const Leftover& leftover : leftovers_) {
    ASSIGN_OR_RETURN(const bool armed, leftover.worker->arm());
    if (!armed) return false;
  }
  return true;
}

int UcxTransport::unfinished(bool* closing) const {
  int sends = static_cast<int>(outcomes_.sent.size());
  *closing = false;
  for (const auto& [peer, connection] : links_) {
    const Link& link = *connection.link;
    sends += link.in_flight;
    *closing |= link.closing != nullptr || link.posted > 0;
  }
  return sends;
}

absl::Status UcxTransport::shut_down(absl::Time deadline) {
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : links_) peers.push_back(peer);
  for (const PeerId peer : peers) close_peer(peer);
  while (true) {
    while (progress()) {
    }
    bool closing = false;
    const int sends = unfinished(&closing);
    if (sends == 0 && !closing) return absl::OkStatus();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("UCX: ", sends, " sends would not end"));
    }
    ASSIGN_OR_RETURN(const bool armed, arm());
    if (armed) wakeup_.sleep(std::min(left, absl::Milliseconds(100)));
  }
}

std::string UcxTransport::lanes(PeerId peer) const {
  const Link* link = find(peer);
  if (link == nullptr || link->endpoint == nullptr) return "";
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "";
  ucp_ep_print_info(link->endpoint, stream);
  fclose(stream);
  const std::string lanes(text, size);
  std::free(text);
  return lanes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options) {
  auto transport = std::make_unique<UcxTransport>(options);
  RETURN_IF_ERROR(transport->start(options));
  return transport;
}

std::string ucx_lanes(const Transport& transport, PeerId peer) {
  const auto* ucx = dynamic_cast<const UcxTransport*>(&transport);
  return ucx == nullptr ? "" : ucx->lanes(peer);
}

}  // namespace brigade::expert_parallel
