#include "expert_parallel/exchange/worker_links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

constexpr absl::Duration kGoodbye = absl::Seconds(2);

}  // namespace

WorkerLinks::WorkerLinks(std::unique_ptr<Transport> transport, const WorkerLinksConfig& config,
                         LossReport on_lost)
    : transport_(std::move(transport)),
      config_(config),
      on_lost_(std::move(on_lost)),
      sinks_(config.microbatches),
      loop_(*transport_, *this) {
  CHECK(config_.frames_per_rank <= transport_->caps().send_queue);
  CHECK(transport_->caps().device_memory || !device_frames());
  for (int rank = 0; rank < config_.num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<RankSlot>());
    ranks_.back()->buffers = AlignedBlock(config_.frames_per_rank, kMaxFrameBytes);
    for (int i = 0; i < config_.frames_per_rank; ++i) ranks_.back()->free.push_back(i);
    ranks_.back()->unsent.reserve(config_.frames_per_rank);
  }
  outbox_.reserve(size_t(config_.num_ranks) * config_.frames_per_rank);
  sending_.reserve(outbox_.capacity());
}

absl::Status WorkerLinks::plan_device_memory() {
  if (!device_frames()) return absl::OkStatus();
  for (const std::unique_ptr<RankSlot>& slot : ranks_) {
    if (slot->device_buffers.data() != nullptr) continue;
    ASSIGN_OR_RETURN(slot->device_buffers,
                     kernels::Buffer::allocate(
                         *config_.device, config_.frames_per_rank * slot->buffers.bytes_each()));
  }
  return absl::OkStatus();
}

WorkerLinks::~WorkerLinks() { stop(); }

void WorkerLinks::start() { loop_.start(); }

// The links end here and not later: who frees device memory waits for all work of the device, and
// with it for transfers to peers that have gone, which only the end of their links calls off.
void WorkerLinks::stop() {
  loop_.stop();
  if (!std::exchange(shut_down_, true)) (void)transport_->shut_down(absl::Now() + kGoodbye);
}

void WorkerLinks::attach(int microbatch, AnswerSink* sink) {
  // A task of the progress thread is taken in microseconds; without it the sink cannot be let go.
  const auto change = [&] {
    sinks_.at(microbatch) = sink;
    if (!device_frames()) return;
    (void)send_frames();
    (void)return_frames();
  };
  CHECK(loop_.call(change, absl::Now() + absl::Minutes(1)).ok());
}

absl::StatusOr<std::string> WorkerLinks::open(Rank rank, uint64_t incarnation,
                                              absl::Time deadline) {
  if (rank < 0 || rank >= config_.num_ranks || incarnation == 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, ", incarnation ", incarnation,
                                                   ": ranks go to ", config_.num_ranks - 1));
  }
  absl::StatusOr<std::string> address = absl::InternalError("not run");
  RETURN_IF_ERROR(loop_.call(
      [&] {
        RankSlot& slot = *ranks_[rank];
        if (slot.has_peer) {
          address = absl::FailedPreconditionError(absl::StrCat("rank ", rank, " has a link"));
          return;
        }
        const absl::StatusOr<PeerId> peer = transport_->open_link();
        if (!peer.ok()) {
          address = peer.status();
          return;
        }
        slot.has_peer = true;
        slot.peer = *peer;
        slot.incarnation = incarnation;
        rank_of_peer_[*peer] = rank;
        address = transport_->address(*peer);
      },
      deadline));
  return address;
}

absl::Status WorkerLinks::connect(Rank rank, const std::string& remote_address,
                                  absl::Time deadline) {
  if (rank < 0 || rank >= config_.num_ranks)
    return absl::InvalidArgumentError(absl::StrCat("no rank ", rank));
  absl::Status status;
  RETURN_IF_ERROR(loop_.call(
      [&] {
        RankSlot& slot = *ranks_[rank];
        status = slot.has_peer
                     ? transport_->connect(slot.peer, remote_address)
                     : absl::FailedPreconditionError(absl::StrCat("rank ", rank, " has no link"));
        if (!status.ok()) return;
        std::lock_guard<std::mutex> lock(mutex_);
        slot.linked = true;
      },
      deadline));
  return status;
}

absl::Status WorkerLinks::close(Rank rank, absl::Time deadline) {
  if (rank < 0 || rank >= config_.num_ranks)
    return absl::InvalidArgumentError(absl::StrCat("no rank ", rank));
  return loop_.call([&] { unlink(rank); }, deadline);
}

void WorkerLinks::unlink(Rank rank) {
  RankSlot& slot = *ranks_[rank];
  if (!slot.has_peer) return;
  transport_->close_peer(slot.peer);
  rank_of_peer_.erase(slot.peer);
  slot.has_peer = false;
  std::lock_guard<std::mutex> lock(mutex_);
  slot.linked = false;
}

std::byte* WorkerLinks::acquire(Rank rank, const kernels::Stream* writer) {
  RankSlot& slot = *ranks_[rank];
  std::lock_guard<std::mutex> lock(mutex_);
  if (!slot.linked) return nullptr;
  const auto own = std::find_if(slot.unsent.begin(), slot.unsent.end(),
                                [&](const Unsent& frame) { return frame.writer == writer; });
  if (own != slot.unsent.end()) {  // its rows will be written after those before
    const int buffer = own->buffer;
    slot.unsent.erase(own);
    return slot.buffers.at(buffer);
  }
  if (slot.free.empty()) return nullptr;
  const int buffer = slot.free.back();
  slot.free.pop_back();
  return slot.buffers.at(buffer);
}

int WorkerLinks::index_of(const RankSlot& slot, const std::byte* frame) const {
  return static_cast<int>((frame - slot.buffers.at(0)) / slot.buffers.bytes_each());
}

std::byte* WorkerLinks::device_rows(Rank rank, const std::byte* frame) const {
  const RankSlot& slot = *ranks_[rank];
  return slot.device_buffers.as<std::byte>() + index_of(slot, frame) * slot.buffers.bytes_each();
}

void WorkerLinks::submit(Rank rank, std::byte* frame, size_t bytes, uint32_t rows,
                         const DeviceRows& device_rows) {
  RankSlot& slot = *ranks_[rank];
  const int buffer = index_of(slot, frame);
  slot.rows.fetch_add(rows, std::memory_order_relaxed);
  slot.frames.fetch_add(1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  outbox_.push_back({rank, buffer, bytes, device_rows});
}

void WorkerLinks::release_after(uint64_t receipt, kernels::Stream* reader) {
  std::lock_guard<std::mutex> lock(mutex_);
  returned_.push_back({receipt, reader});
}

void WorkerLinks::collect() {
  bool any = false;
  for (AnswerSink* sink : sinks_) any |= sink != nullptr && sink->collect();
  if (any) flush();
}

bool WorkerLinks::return_frames() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    returning_.swap(returned_);
  }
  for (const Returned& frame : returning_) {
    frame.reader != nullptr ? transport_->release_after(frame.receipt, *frame.reader)
                            : transport_->release(frame.receipt);
  }
  const bool any = !returning_.empty();
  returning_.clear();
  return any;
}

absl::Time WorkerLinks::on_turn() {
  const bool returned = device_frames() && return_frames();
  return send_frames() || returned ? absl::InfinitePast() : absl::InfiniteFuture();
}

bool WorkerLinks::send_frames() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sending_.swap(outbox_);
  }
  if (sending_.empty()) return false;
  transport_->begin_group();
  for (const Outgoing& frame : sending_) {
    RankSlot& slot = *ranks_[frame.rank];
    const uint64_t cookie = uint64_t(frame.rank) << 32 | static_cast<uint32_t>(frame.buffer);
    Message message = {.head = {slot.buffers.at(frame.buffer), frame.bytes}};
    if (frame.device_rows.bytes > 0) {
      message.device_body = {device_rows(frame.rank, slot.buffers.at(frame.buffer)),
                             frame.device_rows.bytes};
      message.written_by = frame.device_rows.written_by;
    }
    // A frame that cannot go is an unanswered one: its rows are sent again when the view changes.
    if (!slot.has_peer || !transport_->send(slot.peer, message, cookie).ok()) {
      keep_unsent(frame);
    }
  }
  transport_->end_group();
  sending_.clear();
  return true;
}

void WorkerLinks::keep_unsent(const Outgoing& frame) {
  if (frame.device_rows.written_by == nullptr) return give_back(frame.rank, frame.buffer);
  std::lock_guard<std::mutex> lock(mutex_);
  ranks_[frame.rank]->unsent.push_back({frame.buffer, frame.device_rows.written_by});
}

void WorkerLinks::has_written(const kernels::Stream* writer) {
  bool any = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const std::unique_ptr<RankSlot>& slot : ranks_) {
      std::erase_if(slot->unsent, [&](const Unsent& frame) {
        if (frame.writer != writer) return false;
        slot->free.push_back(frame.buffer);
        return any = true;
      });
    }
  }
  if (!any) return;
  for (AnswerSink* sink : sinks_) {
    if (sink != nullptr) sink->on_room();
  }
}

void WorkerLinks::give_back(Rank rank, int buffer) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ranks_[rank]->free.push_back(buffer);
  }
  for (AnswerSink* sink : sinks_) {
    if (sink != nullptr) sink->on_room();
  }
}

void WorkerLinks::on_sent(PeerId, uint64_t cookie, const absl::Status&) {
  give_back(static_cast<Rank>(cookie >> 32), static_cast<int>(cookie & 0xffffffff));
}

Refusal WorkerLinks::check(PeerId peer, Refusal parsed, const FrameView& view, Rank* rank) const {
  const auto found = rank_of_peer_.find(peer);
  if (found == rank_of_peer_.end()) return Refusal::kStaleIncarnation;
  *rank = found->second;
  if (parsed != Refusal::kNone) return parsed;
  const FrameHeader& header = view.header;
  if (header.kind == FrameKind::kDispatch || header.microbatch >= sinks_.size())
    return Refusal::kMalformed;
  return check_parties(header, config_.session, self(), {*rank, ranks_[*rank]->incarnation});
}

void WorkerLinks::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  FrameView view;
  Rank rank = kCoordinator;
  Refusal refusal = check(peer, parse_frame(bytes, config_.limits, &view), view, &rank);
  // Rows among the head's bytes are no device's.
  if (refusal == Refusal::kNone && device_frames() && view.header.row_count > 0)
    refusal = Refusal::kMalformed;
  if (refusal != Refusal::kNone) {
    refusals_.add(refusal);
  } else if (AnswerSink* sink = sinks_[view.header.microbatch]; sink != nullptr) {
    sink->on_frame(rank, view);
  }
  transport_->release(receipt);
}

void WorkerLinks::on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                                    std::span<const std::byte> device_body) {
  FrameView view;
  Rank rank = kCoordinator;
  const Refusal parsed = parse_device_frame(head, device_body, config_.limits, &view);
  const Refusal refusal = check(peer, parsed, view, &rank);
  if (refusal != Refusal::kNone) {
    refusals_.add(refusal);
    transport_->release(receipt);
    if (!is_broken(refusal)) return;
    return on_peer_lost(
        peer, absl::DataLossError(absl::StrCat("rank ", rank, " sent a ", refusal_name(refusal),
                                               " frame: ", device_body.size(),
                                               " bytes of rows behind ", describe_head(head))));
  }
  if (AnswerSink* sink = sinks_[view.header.microbatch]; sink != nullptr) {
    if (sink->on_device_frame(rank, view, receipt)) return;
  }
  transport_->release(receipt);
}

void WorkerLinks::on_peer_lost(PeerId peer, const absl::Status& why) {
  const auto found = rank_of_peer_.find(peer);
  if (found == rank_of_peer_.end()) return;
  const Rank rank = found->second;
  const uint64_t incarnation = ranks_[rank]->incarnation;
  unlink(rank);
  if (on_lost_) on_lost_(rank, incarnation, why);
}

void WorkerLinks::on_loop_failed(const absl::Status& status) {
  for (int rank = 0; rank < config_.num_ranks; ++rank) {
    if (!ranks_[rank]->has_peer) continue;
    const uint64_t incarnation = ranks_[rank]->incarnation;
    unlink(rank);
    if (on_lost_) on_lost_(rank, incarnation, status);
  }
}

uint64_t WorkerLinks::rows_sent(Rank rank) const {
  return ranks_.at(rank)->rows.load(std::memory_order_relaxed);
}
uint64_t WorkerLinks::frames_sent(Rank rank) const {
  return ranks_.at(rank)->frames.load(std::memory_order_relaxed);
}

}  // namespace brigade::expert_parallel
