#include "expert_parallel/transport/nccl_transport.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

// NCCL tells nobody of an error or of the end of a launch: it is asked so often.
constexpr absl::Duration kLookForErrors = absl::Milliseconds(20);
constexpr absl::Duration kLookForLaunch = absl::Microseconds(50);
constexpr absl::Duration kGoodbye = absl::Seconds(2);
// A launch waits for no peer; one that takes longer will not end by itself.
constexpr absl::Duration kLaunchDeadline = absl::Seconds(5);

absl::Status cuda_error(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

cudaStream_t native(kernels::Stream& stream) {
  CHECK(stream.device().kind() == kernels::DeviceKind::kCuda);
  return static_cast<cudaStream_t>(static_cast<kernels::CudaStream&>(stream).native());
}

void watch(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> NcclTransport::create(std::unique_ptr<Transport> host,
                                                                 kernels::CudaDevice& device,
                                                                 const NcclOptions& options) {
  static_assert(sizeof(Trailer) == kNcclTrailerBytes);
  const size_t longest = options.transport.max_message_bytes + kNcclTrailerBytes;
  if (host->caps().max_message_bytes < longest) {
    return absl::InvalidArgumentError(absl::StrCat("NCCL's host transport takes ",
                                                   host->caps().max_message_bytes,
                                                   " bytes a message, needed are ", longest));
  }
  auto transport =
      std::unique_ptr<NcclTransport>(new NcclTransport(std::move(host), device, options));
  if (const ncclResult_t got = ncclGetVersion(&transport->version_); got != ncclSuccess)
    return nccl_error(got, "ncclGetVersion", nullptr);
  cudaDeviceProp properties;
  RETURN_IF_ERROR(cuda_error(cudaGetDeviceProperties(&properties, device.ordinal()),
                             "cudaGetDeviceProperties"));
  std::memcpy(transport->gpu_.data(), properties.uuid.bytes, sizeof(GpuId));
  return transport;
}

NcclTransport::NcclTransport(std::unique_ptr<Transport> host, kernels::CudaDevice& device,
                             const NcclOptions& options)
    : host_(std::move(host)),
      device_(device),
      options_(options),
      changed_(std::make_shared<EventFd>()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  CHECK(epoll_ >= 0 && timer_ >= 0);
  host_->set_listener(this);
  for (const int fd : {host_->event_fd(), changed_->fd(), timer_}) watch(epoll_, fd);
}

NcclTransport::~NcclTransport() {
  if (!links_.empty()) (void)shut_down(absl::Now() + kGoodbye);
  for (auto& [peer, link] : links_) {
    if (link->pair->ended()) {
      free_link(*link);
    } else {
      (void)link.release();  // may still write: its memory is never given back
    }
  }
  close(epoll_);
  close(timer_);
}

TransportCaps NcclTransport::caps() const {
  return {.max_message_bytes = options_.transport.max_message_bytes,
          .send_queue = std::min(options_.transport.send_queue, host_->caps().send_queue),
          .device_memory = true,
          .grouped_posting = true};
}

absl::StatusOr<PeerId> NcclTransport::open_link() {
  auto link = std::make_unique<Link>();
  RETURN_IF_ERROR(plan(*link));
  absl::StatusOr<PeerId> peer = host_->open_link();
  const absl::StatusOr<std::string> host = peer.ok() ? host_->address(*peer) : peer.status();
  if (!host.ok()) {
    spare_blocks_.push_back(std::move(link->block));
    free_link(*link);
    return host.status();
  }
  link->address.host = *host;
  links_[*peer] = std::move(link);
  peers_.reserve(links_.size());
  launches_.reserve(2 * links_.size());
  held_.reserve(links_.size() * options_.transport.window);
  return peer;
}

// All that the link will ever need.
absl::Status NcclTransport::plan(Link& link) {
  RETURN_IF_ERROR(cuda_error(cudaSetDevice(device_.ordinal()), "cudaSetDevice"));
  const int window = options_.transport.window, queue = caps().send_queue;
  link.address = {.version = version_, .gpu = gpu_, .has_ids = options_.makes_ids};
  for (NcclId& made : link.address.ids) {
    if (!options_.makes_ids) break;
    ncclUniqueId id;
    if (const ncclResult_t got = ncclGetUniqueId(&id); got != ncclSuccess)
      return nccl_error(got, "ncclGetUniqueId", nullptr);
    std::memcpy(made.data(), id.internal, sizeof(made));
  }
  ASSIGN_OR_RETURN(link.pair, NcclPair::create(device_.ordinal(), changed_));
  if (spare_blocks_.empty()) {
    const size_t bytes = window * options_.transport.max_message_bytes + NcclPair::kScratchBytes;
    ASSIGN_OR_RETURN(link.block, kernels::Buffer::allocate(device_, bytes));
  } else {
    link.block = std::move(spare_blocks_.back());
    spare_blocks_.pop_back();
  }
  for (int i = 0; i < window; ++i) link.free.push_back(i);
  link.read.resize(window);
  link.was_read.resize(window);
  link.written.resize(queue);
  link.trailers.resize(queue);
  link.sends = BoundedQueue<Send>(queue);
  link.arrivals = BoundedQueue<Arrival>(window);
  for (auto* events : {&link.read, &link.written}) {
    for (cudaEvent_t& event : *events) {
      RETURN_IF_ERROR(cuda_error(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                 "cudaEventCreateWithFlags"));
    }
  }
  return absl::OkStatus();
}

void NcclTransport::free_link(Link& link) {
  for (auto* events : {&link.read, &link.written}) {
    for (cudaEvent_t event : *events) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
}

NcclTransport::Link* NcclTransport::open(PeerId peer) {
  const auto found = links_.find(peer);
  return found != links_.end() && found->second->open ? found->second.get() : nullptr;
}

absl::StatusOr<std::string> NcclTransport::address(PeerId peer) const {
  const auto found = links_.find(peer);
  if (found == links_.end()) return absl::NotFoundError(absl::StrCat("no link ", peer));
  const std::string bytes = encode_nccl_address(found->second->address);
  if (bytes.size() > kMaxAddressBytes)
    return absl::InternalError("the host transport's address leaves no room for NCCL's");
  return bytes;
}

absl::Status NcclTransport::connect(PeerId peer, const std::string& remote_address) {
  Link* link = open(peer);
  if (link == nullptr || link->connected)
    return absl::UnavailableError(absl::StrCat("link ", peer, " is closed or connected"));
  ASSIGN_OR_RETURN(const NcclAddress remote, decode_nccl_address(remote_address));
  RETURN_IF_ERROR(check_pair(link->address, remote));
  RETURN_IF_ERROR(host_->connect(peer, remote.host));
  link->connected = true;
  link->pair->join(
      {.rank = options_.makes_ids ? 0 : 1,
       .ids = options_.makes_ids ? link->address.ids : remote.ids,
       .blocks = options_.blocks,
       .scratch = link->block.as<std::byte>() + link->block.bytes() - NcclPair::kScratchBytes,
       .deadline = absl::Now() + options_.join_deadline});
  return absl::OkStatus();
}

absl::Status NcclTransport::send(PeerId peer, const Message& message, uint64_t cookie) {
  Link* link = open(peer);
  if (link == nullptr || !link->connected || link->lost)
    return absl::UnavailableError(absl::StrCat("link ", peer, " is not connected"));
  if (!message.body.empty())
    return absl::InvalidArgumentError("a body in host memory does not travel between GPUs");
  if (message.bytes() > options_.transport.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("message of ", message.bytes(), " bytes, limit ",
                                                   options_.transport.max_message_bytes));
  }
  if (link->sends.full()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("link ", peer, ": ", link->sends.size(), " sends are waiting"));
  }
  const size_t place = link->next_send % link->trailers.size();
  Trailer& trailer = link->trailers[place];
  trailer = {.number = link->next_send, .body_bytes = message.device_body.size()};
  if (message.written_by != nullptr && !message.device_body.empty()) {
    RETURN_IF_ERROR(cuda_error(cudaEventRecord(link->written[place], native(*message.written_by)),
                               "cudaEventRecord"));
  }
  RETURN_IF_ERROR(host_->send(peer,
                              {.head = message.head, .body = std::as_bytes(std::span(&trailer, 1))},
                              link->next_send));
  link->sends.push({.body = message.device_body,
                    .cookie = cookie,
                    .written_by_stream = message.written_by != nullptr});
  ++link->next_send;
  return absl::OkStatus();
}

void NcclTransport::on_sent(PeerId peer, uint64_t number, const absl::Status& status) {
  Link& link = *links_.at(peer);
  Send& send = link.sends[number - (link.next_send - link.sends.size())];
  send.head_ended = true;
  send.head_status = status;
}

void NcclTransport::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  Link* link = open(peer);
  if (link == nullptr || link->lost || !link->failed.ok()) return host_->release(receipt);
  Trailer trailer{};
  const bool whole = bytes.size() >= sizeof(trailer);
  if (whole) std::memcpy(&trailer, &bytes[bytes.size() - sizeof(trailer)], sizeof(trailer));
  if (!whole || trailer.number != link->next_arrival ||
      trailer.body_bytes > options_.transport.max_message_bytes ||
      (trailer.body_bytes > 0 && link->free.empty()) || link->arrivals.full()) {
    link->failed =
        absl::UnavailableError(absl::StrCat("link ", peer, ": head ", link->next_arrival,
                                            " is out of order, or its body larger than agreed"));
    return host_->release(receipt);
  }
  ++link->next_arrival;
  Arrival arrival = {.receipt = receipt,
                     .head = bytes.first(bytes.size() - sizeof(trailer)),
                     .body_bytes = trailer.body_bytes};
  if (arrival.body_bytes > 0) {
    arrival.buffer = link->free.back();
    link->free.pop_back();
  }
  link->arrivals.push(arrival);
}

void NcclTransport::on_peer_lost(PeerId peer, const absl::Status& why) {
  (void)deliver(peer);  // what came before the end
  lose(peer, why);
}

void NcclTransport::lose(PeerId peer, const absl::Status& why) {
  Link* link = open(peer);
  if (link == nullptr || link->lost) return;
  link->lost = true;
  end_pair(*link, absl::Now());
  listener_->on_peer_lost(peer, why);
}

// Not while a group is launching: NCCL would fail all of its pairs. progress() comes back to it.
void NcclTransport::end_pair(Link& link, absl::Time now) {
  if (!in_group_ || now - group_begun_ > kLaunchDeadline) link.pair->abort();
}

void NcclTransport::close_peer(PeerId peer) {
  Link* link = open(peer);
  if (link == nullptr) return;
  link->open = false;
  end_pair(*link, absl::Now());
  host_->close_peer(peer);
  changed_->signal();
}

void NcclTransport::release(uint64_t receipt) {
  if (!held_release(receipt, nullptr)) host_->release(receipt);
}

void NcclTransport::release_after(uint64_t receipt, kernels::Stream& reader) {
  if (!held_release(receipt, &reader)) host_->release(receipt);
}

bool NcclTransport::held_release(uint64_t receipt, kernels::Stream* reader) {
  const auto held =
      std::find_if(held_.begin(), held_.end(), [&](const Held& h) { return h.receipt == receipt; });
  if (held == held_.end()) return false;
  Link& link = *links_.at(held->peer);
  // A stream that has failed reads nothing more.
  link.was_read[held->buffer] =
      reader != nullptr && cudaEventRecord(link.read[held->buffer], native(*reader)) == cudaSuccess;
  link.free.push_back(held->buffer);
  --link.held;
  *held = held_.back();
  held_.pop_back();
  host_->release(receipt);
  if (!link.open) changed_->signal();
  return true;
}

void NcclTransport::take_peers() {
  peers_.clear();
  for (const auto& [peer, link] : links_) peers_.push_back(peer);
}

bool NcclTransport::progress() {
  cudaSetDevice(device_.ordinal());
  changed_->clear();
  uint64_t fired;
  (void)!read(timer_, &fired, sizeof(fired));
  const absl::Time now = absl::Now();
  bool moved = host_->progress();
  take_peers();
  for (const PeerId peer : peers_) moved |= look_after(peer, now);
  if (now >= next_look_) next_look_ = now + kLookForErrors;
  moved |= post(now);
  for (const PeerId peer : peers_) {
    moved |= deliver(peer);
    moved |= complete(peer);
    moved |= bury(peer);
  }
  return moved;
}

bool NcclTransport::look_after(PeerId peer, absl::Time now) {
  Link* link = links_.at(peer).get();
  if (!link->open || link->lost) end_pair(*link, now);
  if (!link->open || link->lost || !link->connected) return false;
  const absl::Status status = health(*link, now);
  if (status.ok()) return false;
  lose(peer, status);
  return true;
}

absl::Status NcclTransport::health(Link& link, absl::Time now) {
  RETURN_IF_ERROR(link.failed);
  if (!link.pair->ready()) return link.pair->failure();
  if (now < next_look_) return absl::OkStatus();
  for (const Way way : {Way::kOut, Way::kIn}) {
    bool launching;
    RETURN_IF_ERROR(link.pair->async_error(way, &launching));
  }
  const auto overdue = [&](const Transfer& transfer) {
    return transfer.mark != 0 && now - transfer.posted > options_.body_deadline;
  };
  if ((!link.sends.empty() && overdue(link.sends.front().transfer)) ||
      (!link.arrivals.empty() && overdue(link.arrivals.front().transfer))) {
    return absl::UnavailableError(
        absl::StrCat("a body did not pass in ", absl::FormatDuration(options_.body_deadline)));
  }
  return absl::OkStatus();
}

// A link that was closed goes when nothing of it runs or is held any more.
bool NcclTransport::bury(PeerId peer) {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second->open || !found->second->pair->ended()) return false;
  Link& link = *found->second;
  for (size_t i = 0; i < link.sends.size(); ++i) {
    if (!link.sends[i].head_ended) return false;
  }
  while (!link.arrivals.empty()) host_->release(link.arrivals.pop().receipt);
  while (!link.sends.empty()) {
    listener_->on_sent(peer, link.sends.pop().cookie,
                       absl::CancelledError(absl::StrCat("link ", peer, " was closed")));
  }
  if (link.held > 0) return false;
  spare_blocks_.push_back(std::move(link.block));
  free_link(link);
  links_.erase(found);
  return true;
}

bool NcclTransport::any_under_way() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    Link& link = *entry.second;
    return !link.open || link.pair->joining() || !link.sends.empty() || !link.arrivals.empty();
  });
}

absl::StatusOr<bool> NcclTransport::arm() {
  ASSIGN_OR_RETURN(const bool armed, host_->arm());
  if (!armed) return false;
  absl::Duration look = absl::ZeroDuration();  // never
  if (in_group_) {
    look = kLookForLaunch;
  } else if (any_under_way()) {
    look = kLookForErrors;
  }
  itimerspec when{};
  when.it_value = absl::ToTimespec(look);
  CHECK(timerfd_settime(timer_, 0, &when, nullptr) == 0);
  return true;
}

absl::Status NcclTransport::shut_down(absl::Time deadline) {
  take_peers();
  for (const PeerId peer : std::vector<PeerId>(peers_)) close_peer(peer);
  while (true) {
    (void)progress();
    // What is left then is held by the listener, which may never give it back.
    const bool all_ended = std::all_of(links_.begin(), links_.end(), [](const auto& entry) {
      return entry.second->sends.empty() && entry.second->pair->ended();
    });
    if (all_ended) break;
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    if (const absl::StatusOr<bool> armed = arm(); !armed.ok() || !*armed) continue;
    pollfd event = {epoll_, POLLIN, 0};
    (void)poll(&event, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
  }
  const absl::Status host = host_->shut_down(deadline);
  const auto stuck = std::count_if(links_.begin(), links_.end(),
                                   [](const auto& entry) { return !entry.second->pair->ended(); });
  if (stuck > 0) {
    return absl::DeadlineExceededError(
        absl::StrCat(stuck, " pairs of NCCL would not end: their memory stays in use"));
  }
  return host;
}

}  // namespace brigade::expert_parallel
