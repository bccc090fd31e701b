#include "tests/bench/echo_worker.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "kernels/core/check.h"

namespace brigade::bench {

using namespace expert_parallel;

namespace {
constexpr int kBuffers = 32;
}

int rows_per_answer(int hidden) {
  return static_cast<int>(std::max<size_t>(1, kAnswerFrameRowBytes / (hidden * sizeof(float))));
}

EchoWorker::EchoWorker(std::unique_ptr<Transport> transport, const FrameLimits& limits,
                       const Session& session, const Party& coordinator, const Party& self)
    : transport_(std::move(transport)),
      limits_(limits),
      session_(session),
      coordinator_(coordinator),
      self_(self),
      buffers_(kBuffers, kMaxFrameBytes),
      loop_(*transport_, *this) {
  for (int i = 0; i < kBuffers; ++i) free_.push_back(i);
  const absl::StatusOr<PeerId> peer = transport_->open_link();
  CHECK(peer.ok());
  peer_ = *peer;
}

std::string EchoWorker::address() { return transport_->address(peer_).value(); }
void EchoWorker::connect(const std::string& remote) {
  CHECK(transport_->connect(peer_, remote).ok());
}

void EchoWorker::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  FrameView view;
  if (parse_frame(bytes, limits_, &view) == Refusal::kNone &&
      check_parties(view.header, session_, self_, coordinator_) == Refusal::kNone) {
    answer(peer, view);
  } else {
    ++refused_;
  }
  transport_->release(receipt);
}

void EchoWorker::answer(PeerId peer, const FrameView& question) {
  const auto most = static_cast<uint32_t>(rows_per_answer(limits_.hidden));
  const size_t row_bytes = limits_.hidden * sizeof(float);
  FrameHeader header = question.header;
  header.kind = FrameKind::kAnswer;
  header.receiver = coordinator_;
  header.sender = self_;
  const uint32_t terms = question.header.entry_count;
  header.frame_count = (terms + most - 1) / most;
  header.frame_index = 0;
  for (uint32_t first = 0; first < terms; first += most, ++header.frame_index) {
    const uint32_t count = std::min(most, terms - first);
    CHECK(!free_.empty());
    const int buffer = free_.back();
    free_.pop_back();
    std::byte* frame = buffers_.at(buffer);
    header.row_count = header.entry_count = count;
    std::byte* rows = frame_rows(frame, header.kind, count);
    for (uint32_t i = 0; i < count; ++i) {
      const FrameEntry entry = question.entry(first + i);
      put_slot(frame_index(frame), i, entry.slot);
      std::memcpy(rows + i * row_bytes, question.rows + entry.row * row_bytes, row_bytes);
    }
    const size_t bytes = seal_frame(header, frame);
    CHECK(transport_->send(peer, {.head = {frame, bytes}}, buffer).ok());
  }
}

void EchoWorker::on_sent(PeerId, uint64_t cookie, const absl::Status&) {
  free_.push_back(static_cast<int>(cookie));
}

void EchoWorker::on_peer_lost(PeerId, const absl::Status&) { std::_Exit(0); }
void EchoWorker::on_loop_failed(const absl::Status&) { std::_Exit(1); }

}  // namespace brigade::bench
