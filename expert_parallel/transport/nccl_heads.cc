// Heads of NcclTransport: what goes over the host transport, and the buffers that go with it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/nccl_transport.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "kernels/cuda/cuda_status.h"

namespace brigade::expert_parallel {
namespace {

absl::Status record(cudaEvent_t event, kernels::Stream& stream) {
  CHECK(stream.device().kind() == kernels::DeviceKind::kCuda);
  const int recorded = static_cast<kernels::CudaStream&>(stream).record_for(event);
  return kernels::cuda::cuda_status(static_cast<cudaError_t>(recorded), "cudaEventRecord");
}

}  // namespace

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
  NcclTrailer& trailer = link->trailers[place];
  trailer = make_trailer(link->next_send, message.device_body.size());
  const bool by_stream = message.written_by != nullptr && !message.device_body.empty();
  if (by_stream) RETURN_IF_ERROR(record(link->written[place], *message.written_by));
  RETURN_IF_ERROR(host_->send(peer,
                              {.head = message.head, .body = std::as_bytes(std::span(&trailer, 1))},
                              link->next_send));
  link->sends.push({.body = message.device_body, .cookie = cookie, .written_by_stream = by_stream});
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
  const std::optional<NcclTrailer> trailer = read_trailer(bytes);
  if (!trailer || trailer->number != link->next_arrival ||
      trailer->body_bytes > options_.transport.max_message_bytes ||
      (trailer->body_bytes > 0 && link->free.empty()) || link->arrivals.full()) {
    link->failed = absl::UnavailableError(absl::StrCat(
        "link ", peer, ": head ", link->next_arrival,
        trailer ? " is out of order, or its body larger than agreed" : " was changed on its way"));
    return host_->release(receipt);
  }
  ++link->next_arrival;
  Arrival arrival = {.receipt = receipt,
                     .head = bytes.first(bytes.size() - kNcclTrailerBytes),
                     .body_bytes = trailer->body_bytes};
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
  link.was_read[held->buffer] = reader != nullptr && record(link.read[held->buffer], *reader).ok();
  link.free.push_back(held->buffer);
  --link.held;
  *held = held_.back();
  held_.pop_back();
  host_->release(receipt);
  if (!link.open) changed_->signal();
  return true;
}

}  // namespace brigade::expert_parallel
