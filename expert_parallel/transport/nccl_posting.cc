// Bodies of NcclTransport: groups of sends and receives, and what has passed.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "expert_parallel/transport/nccl_transport.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::expert_parallel {

using kernels::cuda::cuda_status;

// A group may still be launching when ncclGroupEnd() returns. Until then none of its communicators
// may be used, and a mark on its streams would be in front of its transfers.
bool NcclTransport::end_launch() {
  for (const Launch& launch : launches_) {
    bool launching = false;
    if (launch.pair->ready()) (void)launch.pair->nccl_state(launch.way, &launching);
    if (launching) return false;
  }
  in_group_ = false;
  for (const Launch& launch : launches_) {
    if (!launch.pair->ready()) continue;
    const absl::Status marked = launch.pair->mark(launch.way);
    Link* link = open(launch.peer);
    if (!marked.ok() && link != nullptr) link->failed = marked;
  }
  launches_.clear();
  return true;
}

// All transfers that can be posted now, as one group. A link that fails in it is lost afterwards:
// no communicator may end inside a group.
bool NcclTransport::post(absl::Time now) {
  if (in_group_ && !end_launch()) return false;
  bool failed = false;
  for (const PeerId peer : peers_) {
    Link* link = open(peer);
    if (link == nullptr || !usable(*link) || !link->pair->ready()) continue;
    if (may_post(*link)) post_receives(peer, *link, now);
    if (link->failed.ok()) post_sends(peer, *link, now);
    failed |= !link->failed.ok();
  }
  if (launches_.empty()) return failed;
  const ncclResult_t ended = ncclGroupEnd();
  in_group_ = true;
  group_begun_ = now;
  if (ended != ncclSuccess && ended != ncclInProgress) {
    // Not one of the group's transfers can be relied on.
    for (const Launch& launch : launches_) {
      Link* link = open(launch.peer);
      if (link != nullptr && link->failed.ok())
        link->failed = nccl_error(ended, "ncclGroupEnd", launch.pair->comm(launch.way));
    }
  }
  (void)end_launch();
  return true;
}

// NCCL fails all of a group when one of its communicators has failed, as a loss on the network
// makes it do at any moment: asked just before, so that the moment is short.
bool NcclTransport::may_post(Link& link) const {
  for (const Way way : {Way::kOut, Way::kIn}) {
    bool launching;
    if (link.failed.ok()) link.failed = link.pair->nccl_state(way, &launching);
  }
  return link.failed.ok();
}

void NcclTransport::add_launch(PeerId peer, const Link& link, Way way) {
  if (launches_.empty()) ncclGroupStart();
  const bool known =
      !launches_.empty() && launches_.back().peer == peer && launches_.back().way == way;
  if (!known) launches_.push_back({peer, link.pair, way});
}

void NcclTransport::post_receives(PeerId peer, Link& link, absl::Time now) {
  const cudaStream_t stream = link.pair->stream(Way::kIn);
  for (size_t i = 0; i < link.arrivals.size() && link.failed.ok(); ++i) {
    Arrival& arrival = link.arrivals[i];
    if (arrival.body_bytes == 0 || arrival.transfer.mark != 0) continue;
    if (link.was_read[arrival.buffer]) {
      link.failed = cuda_status(cudaStreamWaitEvent(stream, link.read[arrival.buffer], 0),
                                "cudaStreamWaitEvent", "the last reader of a buffer");
      if (!link.failed.ok()) return;
    }
    add_launch(peer, link, Way::kIn);
    const ncclResult_t posted =
        ncclRecv(link.block.as<std::byte>() + arrival.buffer * options_.transport.max_message_bytes,
                 arrival.body_bytes, ncclInt8, options_.makes_ids ? 1 : 0,
                 link.pair->comm(Way::kIn), stream);
    if (posted != ncclSuccess && posted != ncclInProgress)
      link.failed = nccl_error(posted, "ncclRecv", link.pair->comm(Way::kIn));
    arrival.transfer = {.mark = link.pair->next_mark(Way::kIn), .posted = now};
  }
}

// A body goes once its head was handed over: the receiver then has a buffer for it, and no transfer
// waits on the GPU for one that is slow to take its messages.
void NcclTransport::post_sends(PeerId peer, Link& link, absl::Time now) {
  const cudaStream_t stream = link.pair->stream(Way::kOut);
  const uint64_t first = link.next_send - link.sends.size();
  for (size_t i = 0; i < link.sends.size() && link.failed.ok(); ++i) {
    Send& send = link.sends[i];
    if (!send.head_ended || !send.head_status.ok()) return;
    if (send.body.empty() || send.transfer.mark != 0) continue;
    if (send.written_by_stream) {
      link.failed = cuda_status(
          cudaStreamWaitEvent(stream, link.written[(first + i) % link.written.size()], 0),
          "cudaStreamWaitEvent", "the writer of a body");
      if (!link.failed.ok()) return;
    }
    add_launch(peer, link, Way::kOut);
    const ncclResult_t posted =
        ncclSend(send.body.data(), send.body.size(), ncclInt8, options_.makes_ids ? 1 : 0,
                 link.pair->comm(Way::kOut), stream);
    if (posted != ncclSuccess && posted != ncclInProgress)
      link.failed = nccl_error(posted, "ncclSend", link.pair->comm(Way::kOut));
    send.transfer = {.mark = link.pair->next_mark(Way::kOut), .posted = now};
  }
}

// In the order of the heads. A pair that was aborted passes its marks with nothing received.
bool NcclTransport::deliver(PeerId peer) {
  bool moved = false;
  for (Link* link = open(peer); link != nullptr && usable(*link) && !link->arrivals.empty();
       link = open(peer)) {
    const Arrival arrival = link->arrivals.front();
    const uint64_t mark = arrival.transfer.mark;
    if (arrival.body_bytes > 0 &&
        (mark == 0 || !link->pair->ready() || link->pair->passed(Way::kIn) < mark)) {
      break;
    }
    if (arrival.body_bytes > 0) {
      const absl::Status status = link->pair->health(Way::kIn);
      if (!status.ok()) {
        lose(peer, status);
        return true;
      }
    }
    link->arrivals.pop();
    moved = true;
    if (arrival.body_bytes == 0) {
      listener_->on_message(peer, arrival.receipt, arrival.head);
      continue;
    }
    ++link->held;
    held_.push_back({arrival.receipt, peer, arrival.buffer});
    const std::byte* body =
        link->block.as<std::byte>() + arrival.buffer * options_.transport.max_message_bytes;
    listener_->on_device_message(peer, arrival.receipt, arrival.head, {body, arrival.body_bytes});
  }
  return moved;
}

bool NcclTransport::complete(PeerId peer) {
  bool moved = false;
  for (Link* link = open(peer); link != nullptr && usable(*link) && !link->sends.empty();
       link = open(peer)) {
    const Send& send = link->sends.front();
    if (!send.head_ended) break;
    const uint64_t mark = send.transfer.mark;
    const bool goes = !send.body.empty() && send.head_status.ok();
    const bool passed =
        goes ? mark != 0 && link->pair->ready() && link->pair->passed(Way::kOut) >= mark
             : !still_written(*link, 0);
    if (!passed) break;
    const Send done = link->sends.pop();
    moved = true;
    listener_->on_sent(peer, done.cookie, done.head_status);
  }
  return moved;
}

}  // namespace brigade::expert_parallel
