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
#include "kernels/cuda/cuda_status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::cuda::cuda_status;

// NCCL tells nobody of an error or of the end of a launch: it is asked so often.
constexpr absl::Duration kLookForErrors = absl::Milliseconds(20);
constexpr absl::Duration kLookForLaunch = absl::Microseconds(50);
// For aborts to end; inside NCCL they may take seconds.
constexpr absl::Duration kGoodbye = absl::Seconds(10);

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
  RETURN_IF_ERROR(cuda_status(cudaGetDeviceProperties(&properties, device.ordinal()),
                              "cudaGetDeviceProperties", "GPU ", device.ordinal()));
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
      device_.work_is_lost();
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
  for (const Way way : {Way::kOut, Way::kIn}) RETURN_IF_ERROR(link.pair->health(way));
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
