// Links of NcclTransport: from their making to the day when nothing of them runs any more.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/nccl_transport.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::expert_parallel {
namespace {

using kernels::cuda::cuda_status;

// A launch waits for no peer; one that takes longer will not end by itself.
constexpr absl::Duration kLaunchDeadline = absl::Seconds(5);

// Whether what was enqueued before the event was recorded has not run.
bool is_pending(cudaEvent_t event) {
  if (cudaEventQuery(event) != cudaErrorNotReady) return false;
  cudaGetLastError();  // where it was noted
  return true;
}

}  // namespace

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
  RETURN_IF_ERROR(
      cuda_status(cudaSetDevice(device_.ordinal()), "cudaSetDevice", device_.ordinal()));
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
      RETURN_IF_ERROR(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                  "cudaEventCreateWithFlags", "without timing"));
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

// What streams of others were told to do with the link's memory may be behind: a body that did not
// go is still written, a buffer that was given back is still read. Whoever has it next knows of
// neither.
bool NcclTransport::still_written(const Link& link, size_t send) const {
  const uint64_t number = link.next_send - link.sends.size() + send;
  return link.sends[send].written_by_stream &&
         is_pending(link.written[number % link.written.size()]);
}

bool NcclTransport::still_used(const Link& link) const {
  for (size_t i = 0; i < link.sends.size(); ++i) {
    if (still_written(link, i)) return true;
  }
  for (size_t i = 0; i < link.read.size(); ++i) {
    if (link.was_read[i] && is_pending(link.read[i])) return true;
  }
  return false;
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
  if (still_used(link)) return false;
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

}  // namespace brigade::expert_parallel
