#include "expert_parallel/transport/ucx_transport.h"

#include <poll.h>
#include <signal.h>
#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/link_address.h"
#include "expert_parallel/transport/ucx_link.h"
#include "expert_parallel/transport/ucx_settings.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

using namespace ucx;

static_assert(sizeof(MessagePart) == sizeof(ucp_dt_iov_t) &&
              offsetof(MessagePart, bytes) == offsetof(ucp_dt_iov_t, length));

absl::Status ucx_error(const char* call, ucs_status_t status) {
  return absl::InternalError(absl::StrCat("UCX ", call, ": ", ucs_status_string(status)));
}

// UCX catches fatal signals when it is loaded, and then freezes or prints where a crash should end
// the process; and it logs a lost peer as an error, which is an event to us.
void quiet_process_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) {
      ucs_debug_disable_signal(number);
      signal(number, SIG_DFL);
    }
    ucs_global_opts.handle_errors = 0;
    if (std::getenv("UCX_LOG_LEVEL") == nullptr)
      ucs_global_opts.log_component.log_level = UCS_LOG_LEVEL_FATAL;
  });
}

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
  int event_fd() const override { return event_fd_; }
  absl::StatusOr<bool> arm() override;
  absl::Status shut_down(absl::Time deadline) override;
  uint64_t strangers_refused() const override { return strangers_; }
  std::string lanes(PeerId peer) const;

 private:
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

  static UcxTransport& owner(Link& link) { return *static_cast<UcxTransport*>(link.owner); }
  static void on_receive(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* slot);
  static void on_send(void* request, ucs_status_t status, void* slot);
  static void on_error(void* link, ucp_ep_h, ucs_status_t status);

  Link* find(PeerId peer) const;
  absl::StatusOr<std::string> worker_address(bool net_only) const;
  void post_receive(ReceiveSlot& slot);
  void post_send(SendSlot& slot);
  void finish_send(SendSlot& slot, const absl::Status& status);
  void pump(Link& link);
  void return_credits(Link& link);
  void send_credits(Link& link);
  void fail(Link& link, const absl::Status& why);
  void cancel_receives(Link& link);
  void cancel_waiting(Link& link, const absl::Status& why);
  bool hand_out();
  void report_failures();
  void refuse_strangers();
  void reclaim();

  const TransportOptions options_;
  const HostIdentity host_;
  std::mt19937_64 random_;
  TransportListener* listener_ = nullptr;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_, address_net_;
  PeerId next_peer_ = 1;
  std::map<PeerId, std::unique_ptr<Link>> links_;
  std::vector<Arrival> arrivals_, handing_out_;
  std::vector<Sent> sent_, reporting_;
  bool failed_ = false;  // some link has a failure to report
  bool closed_ = false;  // some link waits to be reclaimed
  uint64_t strangers_ = 0;
};

absl::Status UcxTransport::start(const UcxOptions& options) {
  if (options_.window < 1 || options_.window > kMaxWindow || options_.send_queue < 1) {
    return absl::InvalidArgumentError(absl::StrCat("transport window of ", options_.window,
                                                   " and queue of ", options_.send_queue,
                                                   ": they go from 1, the window to ", kMaxWindow));
  }
  quiet_process_once();
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return ucx_error("ucp_config_read", status);
  for (const auto& [name, value] : ucx_settings(options)) {
    status = ucp_config_modify(config, name.c_str(), value.c_str());
    if (status == UCS_OK) continue;
    ucp_config_release(config);
    return ucx_error(absl::StrCat("setting ", name, "=", value).c_str(), status);
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  if (status != UCS_OK) return ucx_error("ucp_init", status);
  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made by one thread, driven by another
  status = ucp_worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) return ucx_error("ucp_worker_create", status);
  status = ucp_worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return ucx_error("ucp_worker_get_efd", status);
  ASSIGN_OR_RETURN(address_, worker_address(/*net_only=*/false));
  ASSIGN_OR_RETURN(address_net_, worker_address(/*net_only=*/true));
  return absl::OkStatus();
}

UcxTransport::~UcxTransport() {
  if (worker_ != nullptr) {
    (void)shut_down(absl::Now() + absl::Seconds(2));
    ucp_worker_destroy(worker_);
  }
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<std::string> UcxTransport::worker_address(bool net_only) const {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = net_only ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
  const ucs_status_t status = ucp_worker_query(worker_, &attributes);
  if (status != UCS_OK) return ucx_error("ucp_worker_query", status);
  const std::string bytes(reinterpret_cast<const char*>(attributes.address),
                          attributes.address_length);
  ucp_worker_release_address(worker_, attributes.address);
  return bytes;
}

Link* UcxTransport::find(PeerId peer) const {
  const auto found = links_.find(peer);
  return found != links_.end() && found->second->open ? found->second.get() : nullptr;
}

absl::StatusOr<PeerId> UcxTransport::open_link() {
  const PeerId peer = next_peer_++;
  auto& link = links_[peer] =
      std::make_unique<Link>(this, peer, options_, static_cast<uint16_t>(random_()));
  for (ReceiveSlot& slot : link->receives) post_receive(slot);
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
       .worker = address_,
       .worker_net = address_net_});
}

absl::Status UcxTransport::connect(PeerId peer, const std::string& remote_address) {
  Link* link = find(peer);
  if (link == nullptr) return absl::UnavailableError(absl::StrCat("link ", peer, " is closed"));
  if (link->endpoint != nullptr)
    return absl::FailedPreconditionError(absl::StrCat("link ", peer, " is connected"));
  ASSIGN_OR_RETURN(const LinkAddress remote, decode_link_address(remote_address));
  const std::string& address =
      may_share_memory(host_, remote.host) ? remote.worker : remote.worker_net;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &UcxTransport::on_error, .arg = link};
  const ucs_status_t status = ucp_ep_create(worker_, &params, &link->endpoint);
  if (status != UCS_OK) {
    link->endpoint = nullptr;
    return ucx_error(absl::StrCat("ucp_ep_create of link ", peer).c_str(), status);
  }
  link->far_link = remote.link;
  link->far_nonce = remote.nonce;
  link->far_max_bytes = remote.max_message_bytes;
  link->credits += remote.window;
  send_credits(*link);  // none; but the lanes are made now, and an early end is seen
  return absl::OkStatus();
}

absl::Status UcxTransport::send(PeerId peer, const Message& message, uint64_t cookie) {
  Link* link = find(peer);
  if (link == nullptr || !link->usable()) {
    return absl::UnavailableError(absl::StrCat("link ", peer, " is not connected"));
  }
  const size_t limit = std::min(options_.max_message_bytes, link->far_max_bytes);
  if (message.bytes() > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", message.bytes(), " bytes, limit ", limit));
  }
  if (link->free_sends.size() <= static_cast<size_t>(link->unreported)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("link ", peer, ": ", link->sends.size(), " sends are waiting"));
  }
  SendSlot* slot = link->free_sends.back();
  link->free_sends.pop_back();
  slot->message = message;
  slot->cookie = cookie;
  link->waiting.push_back(slot);
  pump(*link);
  return absl::OkStatus();
}

void UcxTransport::pump(Link& link) {
  while (link.usable() && link.credits > 0 && !link.waiting.empty()) {
    SendSlot* slot = link.waiting.front();
    link.waiting.pop_front();
    --link.credits;
    post_send(*slot);
  }
}

void UcxTransport::post_send(SendSlot& slot) {
  Link& link = *slot.link;
  const uint64_t tag = make_tag(kData, link.owed, link.far_nonce, link.far_link);
  link.owed = 0;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &UcxTransport::on_send;
  params.user_data = &slot;
  const Message& message = slot.message;
  const void* data = message.head.data();
  size_t count = message.head.size();
  if (!message.body.empty() && message.head.data() + count != message.body.data()) {
    slot.parts[0] = {const_cast<std::byte*>(message.head.data()), message.head.size()};
    slot.parts[1] = {const_cast<std::byte*>(message.body.data()), message.body.size()};
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    data = slot.parts;
    count = 2;
  } else {
    count += message.body.size();
  }
  ++link.in_flight;
  void* request = ucp_tag_send_nbx(link.endpoint, data, count, tag, &params);
  if (request == nullptr) {
    finish_send(slot, absl::OkStatus());
  } else if (UCS_PTR_IS_ERR(request)) {
    const absl::Status why = ucx_error("ucp_tag_send_nbx", UCS_PTR_STATUS(request));
    finish_send(slot, why);
    fail(link, why);
  }
}

void UcxTransport::on_send(void* request, ucs_status_t status, void* user_data) {
  auto* slot = static_cast<SendSlot*>(user_data);
  Link& link = *slot->link;
  ucp_request_free(request);
  const absl::Status result = status == UCS_OK ? absl::OkStatus()
                              : !link.open     ? absl::CancelledError("the link was closed")
                                               : ucx_error("send", status);
  owner(link).finish_send(*slot, result);
}

void UcxTransport::finish_send(SendSlot& slot, const absl::Status& status) {
  sent_.push_back({slot.link->peer, slot.cookie, status});
  ++slot.link->unreported;
  --slot.link->in_flight;
  slot.link->free_sends.push_back(&slot);
}

void UcxTransport::post_receive(ReceiveSlot& slot) {
  Link& link = *slot.link;
  const bool credit = slot.buffer < 0;
  ucp_request_param_t params{};
  params.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  params.cb.recv = &UcxTransport::on_receive;
  params.user_data = &slot;
  slot.posted = true;
  ++link.posted;
  void* request = ucp_tag_recv_nbx(worker_, credit ? nullptr : link.buffers.at(slot.buffer),
                                   credit ? 0 : options_.max_message_bytes,
                                   make_tag(credit ? kCredit : kData, 0, link.nonce, link.peer),
                                   ~kCreditsMask, &params);
  if (UCS_PTR_IS_ERR(request)) {
    slot.posted = false;
    --link.posted;
    fail(link, ucx_error("ucp_tag_recv_nbx", UCS_PTR_STATUS(request)));
  } else if (slot.posted) {  // not completed in between
    slot.request = request;
  }
}

void UcxTransport::on_receive(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                              void* user_data) {
  auto* slot = static_cast<ReceiveSlot*>(user_data);
  Link& link = *slot->link;
  UcxTransport& self = owner(link);
  const ucp_tag_recv_info_t got = *info;  // lies inside the request
  ucp_request_free(request);
  slot->request = nullptr;
  slot->posted = false;
  --link.posted;
  if (status == UCS_ERR_CANCELED || !link.open) return;
  if (status != UCS_OK) return self.fail(link, ucx_error("receive", status));
  link.credits += tag_credits(got.sender_tag);
  if (slot->buffer < 0) {
    self.post_receive(*slot);
  } else {
    ++link.receipts;
    self.arrivals_.push_back({&link, slot->buffer, got.length});
  }
}

void UcxTransport::release(uint64_t receipt) {
  const auto found = links_.find(static_cast<PeerId>(receipt >> 32));
  CHECK(found != links_.end() && found->second->receipts > 0);
  Link& link = *found->second;
  --link.receipts;
  if (!link.open || !link.failure.ok()) return;
  post_receive(link.receives[receipt & 0xffffffff]);
  ++link.owed;
  return_credits(link);
}

// By themselves once half the window is owed; else they ride on the next message.
void UcxTransport::return_credits(Link& link) {
  if (link.usable() && link.owed >= (options_.window + 1) / 2) send_credits(link);
}

void UcxTransport::send_credits(Link& link) {
  ucp_request_param_t params{};
  void* request =
      ucp_tag_send_nbx(link.endpoint, nullptr, 0,
                       make_tag(kCredit, link.owed, link.far_nonce, link.far_link), &params);
  link.owed = 0;
  if (UCS_PTR_IS_ERR(request))
    return fail(link, ucx_error("ucp_tag_send_nbx", UCS_PTR_STATUS(request)));
  if (request != nullptr) ucp_request_free(request);  // it goes on by itself
}

void UcxTransport::on_error(void* user_data, ucp_ep_h, ucs_status_t status) {
  auto* link = static_cast<Link*>(user_data);
  owner(*link).fail(*link, absl::UnavailableError(
                               absl::StrCat("link ", link->peer, ": ", ucs_status_string(status))));
}

void UcxTransport::fail(Link& link, const absl::Status& why) {
  if (!link.open || !link.failure.ok()) return;
  link.failure = why;
  failed_ = true;
}

void UcxTransport::cancel_receives(Link& link) {
  for (ReceiveSlot& slot : link.receives) {
    // A receive that data is flowing into ends with its endpoint instead.
    if (slot.posted && slot.request != nullptr) ucp_request_cancel(worker_, slot.request);
  }
}

void UcxTransport::cancel_waiting(Link& link, const absl::Status& why) {
  for (SendSlot* slot : link.waiting) {
    sent_.push_back({link.peer, slot->cookie, why});
    ++link.unreported;
    link.free_sends.push_back(slot);
  }
  link.waiting.clear();
}

void UcxTransport::close_peer(PeerId peer) {
  Link* link = find(peer);
  if (link == nullptr) return;
  link->open = false;
  closed_ = true;
  cancel_waiting(*link, absl::CancelledError(absl::StrCat("link ", peer, " was closed")));
  cancel_receives(*link);
  if (link->endpoint == nullptr) return;
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucp_ep_close_nbx(link->endpoint, &params);
  link->endpoint = nullptr;
  if (!UCS_PTR_IS_ERR(request)) link->closing = request;
}

bool UcxTransport::progress() {
  bool moved = false;
  for (int i = 0; i < 64 && ucp_worker_progress(worker_) != 0; ++i) moved = true;
  for (const auto& [peer, link] : links_) pump(*link);
  moved |= hand_out();
  if (failed_) report_failures();
  refuse_strangers();
  if (closed_) reclaim();
  return moved;
}

bool UcxTransport::hand_out() {
  if (arrivals_.empty() && sent_.empty()) return false;
  handing_out_.swap(arrivals_);
  for (const Arrival& arrival : handing_out_) {
    if (!arrival.link->open) {
      --arrival.link->receipts;  // closed meanwhile: nobody wants it
      continue;
    }
    const uint64_t receipt =
        uint64_t(arrival.link->peer) << 32 | static_cast<uint32_t>(arrival.buffer);
    listener_->on_message(arrival.link->peer, receipt,
                          {arrival.link->buffers.at(arrival.buffer), arrival.bytes});
  }
  handing_out_.clear();
  reporting_.swap(sent_);
  for (const Sent& sent : reporting_) {
    --links_.at(sent.peer)->unreported;
    listener_->on_sent(sent.peer, sent.cookie, sent.status);
  }
  reporting_.clear();
  return true;
}

void UcxTransport::report_failures() {
  failed_ = false;
  std::vector<Link*> failed;
  for (const auto& [peer, link] : links_) {
    if (link->open && !link->failure.ok() && !link->failure_reported) failed.push_back(link.get());
  }
  for (Link* link : failed) {
    link->failure_reported = true;
    cancel_waiting(*link, link->failure);
    cancel_receives(*link);
    listener_->on_peer_lost(link->peer, link->failure);
  }
}

// A message that matches no posted receive of a live link comes from no peer of ours: take it off
// the library's queue, which has no bound.
void UcxTransport::refuse_strangers() {
  ucp_tag_recv_info_t info;
  while (ucp_tag_probe_nb(worker_, 0, 0, /*remove=*/0, &info) != nullptr) {
    const auto found = links_.find(static_cast<PeerId>(info.sender_tag));
    const uint64_t nonce = info.sender_tag >> 32 & 0xffff, kind = info.sender_tag >> 60;
    const bool known = found != links_.end() && found->second->nonce == nonce &&
                       (kind == kData || kind == kCredit);
    if (known && found->second->open) {
      // A peer never sends without a credit.
      return fail(*found->second, absl::UnavailableError(absl::StrCat(
                                      "link ", found->first, ": the peer overran its window")));
    }
    ucp_tag_message_h message =
        ucp_tag_probe_nb(worker_, info.sender_tag, ~0ull, /*remove=*/1, &info);
    if (message == nullptr) return;
    if (!known) ++strangers_;
    ucp_request_param_t params{};
    void* request = ucp_tag_msg_recv_nbx(worker_, nullptr, 0, message, &params);
    if (request != nullptr && !UCS_PTR_IS_ERR(request)) ucp_request_free(request);
  }
}

void UcxTransport::reclaim() {
  closed_ = false;
  for (auto at = links_.begin(); at != links_.end();) {
    Link& link = *at->second;
    if (link.closing != nullptr && ucp_request_check_status(link.closing) != UCS_INPROGRESS) {
      ucp_request_free(link.closing);
      link.closing = nullptr;
    }
    const bool waits = !link.open;
    at = waits && link.given_back() ? links_.erase(at) : std::next(at);
    closed_ |= waits;
  }
}

absl::StatusOr<bool> UcxTransport::arm() {
  if (!arrivals_.empty() || !sent_.empty() || failed_) return false;
  const ucs_status_t status = ucp_worker_arm(worker_);
  if (status == UCS_OK) return true;
  if (status == UCS_ERR_BUSY) return false;
  return ucx_error("ucp_worker_arm", status);
}

absl::Status UcxTransport::shut_down(absl::Time deadline) {
  std::vector<PeerId> peers;
  for (const auto& [peer, link] : links_) peers.push_back(peer);
  for (const PeerId peer : peers) close_peer(peer);
  while (true) {
    while (progress()) {
    }
    int open_sends = static_cast<int>(sent_.size());
    bool closing = false;
    for (const auto& [peer, link] : links_) {
      open_sends += link->in_flight;
      closing |= link->closing != nullptr || link->posted > 0;
    }
    if (open_sends == 0 && !closing) return absl::OkStatus();
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(absl::StrCat("UCX: ", open_sends, " sends would not end"));
    }
    ASSIGN_OR_RETURN(const bool armed, arm());
    if (!armed) continue;
    pollfd descriptor = {event_fd_, POLLIN, 0};
    poll(&descriptor, 1,
         static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, 100)));
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
