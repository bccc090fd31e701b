// The sending half of ExpertServer: a batch's rows become frames.
#include <algorithm>
#include <cstring>

#include "expert_parallel/experts/expert_server.h"
#include "kernels/core/check.h"

namespace brigade::expert_parallel {

int ExpertServer::take_buffer(Coordinator& coordinator) {
  CHECK(!coordinator.free.empty());
  const int buffer = coordinator.free.back();
  coordinator.free.pop_back();
  return buffer;
}

void ExpertServer::answer(PeerId peer, Coordinator& coordinator, const FrameHeader& question) {
  const std::span<const uint32_t> slots = batch_->slots(), declined = batch_->declined();
  const uint32_t most = rows_per_answer_;
  FrameHeader header = question;
  header.dtype = geometry_.wire_dtype;
  header.receiver = coordinator.party;
  header.sender = coordinator.self;
  header.frame_count = static_cast<uint32_t>((slots.size() + most - 1) / most + !declined.empty());
  header.frame_index = 0;
  transport_->begin_group();
  for (size_t first = 0; first < slots.size(); first += most, ++header.frame_index) {
    header.row_count = header.entry_count =
        static_cast<uint32_t>(std::min<size_t>(most, slots.size() - first));
    answer_rows(peer, coordinator, first, header);
  }
  if (!declined.empty()) decline(peer, coordinator, header);
  transport_->end_group();
}

// One frame: header.row_count rows of the batch from `first` on.
void ExpertServer::answer_rows(PeerId peer, Coordinator& coordinator, size_t first,
                               const FrameHeader& question) {
  FrameHeader header = question;
  header.kind = FrameKind::kAnswer;
  const int buffer = take_buffer(coordinator);
  std::byte* frame = coordinator.answers.at(buffer);
  const size_t bytes =
      size_t(header.row_count) * geometry_.hidden * kernels::dtype_bytes(geometry_.wire_dtype);
  std::memcpy(frame_index(frame), &batch_->slots()[first], header.row_count * sizeof(uint32_t));
  if (!device_frames_) {
    std::memcpy(frame_rows(frame, header.kind, header.row_count), batch_->answer_row(first), bytes);
    return send(peer, coordinator, buffer, {.head = {frame, seal_frame(header, frame)}});
  }
  std::byte* rows = coordinator.device_answers.as<std::byte>() + buffer * answer_bytes_each();
  // A stream that has failed takes no more work: the next batch says so.
  if (!stream_->copy_on_device(rows, batch_->answer_row(first), bytes).ok()) {
    coordinator.free.push_back(buffer);
    return;
  }
  send(peer, coordinator, buffer,
       {.head = {frame, seal_head(header, frame)},
        .device_body = {rows, bytes},
        .written_by = stream_.get()});
}

void ExpertServer::decline(PeerId peer, Coordinator& coordinator, FrameHeader header) {
  const std::span<const uint32_t> declined = batch_->declined();
  const int buffer = take_buffer(coordinator);
  std::byte* frame = coordinator.answers.at(buffer);
  header.kind = FrameKind::kDecline;
  header.row_count = 0;
  header.entry_count = static_cast<uint32_t>(declined.size());
  std::memcpy(frame_index(frame), declined.data(), declined.size_bytes());
  send(peer, coordinator, buffer, {.head = {frame, seal_frame(header, frame)}});
}

void ExpertServer::send(PeerId peer, Coordinator& coordinator, int buffer, const Message& message) {
  // A coordinator that has gone needs no answer; its loss is reported by itself.
  if (!transport_->send(peer, message, buffer).ok()) coordinator.free.push_back(buffer);
}

}  // namespace brigade::expert_parallel
