#include "expert_parallel/experts/expert_server.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::expert_parallel {
namespace {

// After an error a device wakes nobody: it is asked so often.
constexpr absl::Duration kLookForErrors = absl::Milliseconds(50);
constexpr absl::Duration kLastWait = absl::Seconds(5);  // for the stream, at the end

// Rows of one answer frame: kAnswerFrameRowBytes of them, or as many as it takes for two batches of
// max_terms to fit the send queue. 0: not even one fits.
uint32_t rows_per_frame(const ExpertGeometry& geometry, int max_terms, int send_queue) {
  const size_t row_bytes = size_t(geometry.hidden) * kernels::dtype_bytes(geometry.wire_dtype);
  const size_t around = kFrameHeaderBytes + kFrameAlignment;  // room for the index's padding
  const size_t most = (kMaxFrameBytes - around) / (row_bytes + sizeof(uint32_t));
  const size_t preferred = std::max<size_t>(1, kAnswerFrameRowBytes / row_bytes);
  const size_t frames = std::max(1, send_queue / 2 - 1);
  return static_cast<uint32_t>(std::min(most, std::max(preferred, max_terms / frames + 1)));
}

// Answers, and one decline.
int frames_of_batch(uint32_t rows_per_frame, int max_terms) {
  const int each = static_cast<int>(rows_per_frame);
  return (max_terms + each - 1) / each + 1;
}

// Of one answer buffer: a full answer, or a decline of everything.
size_t buffer_bytes(const ExpertGeometry& geometry, uint32_t rows_per_frame, int max_terms) {
  const FrameHeader answer = {.kind = FrameKind::kAnswer,
                              .dtype = geometry.wire_dtype,
                              .hidden = static_cast<uint32_t>(geometry.hidden),
                              .row_count = rows_per_frame,
                              .entry_count = rows_per_frame};
  return std::max(frame_bytes(answer),
                  kFrameHeaderBytes + frame_index_bytes(FrameKind::kDecline, max_terms));
}

bool same_exchange(const FrameHeader& a, const FrameHeader& b) {
  return a.step == b.step && a.microbatch == b.microbatch && a.layer == b.layer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertServer>> ExpertServer::create(
    std::unique_ptr<Transport> transport, kernels::Device& device, const ExpertShard& shard,
    const ExpertServerConfig& config, CoordinatorLost on_lost) {
  ASSIGN_OR_RETURN(auto batch,
                   ExpertBatch::create(device, shard, config.frames_per_batch,
                                       config.limits.max_slots, transport->caps().device_memory));
  const int send_queue = transport->caps().send_queue;
  const uint32_t rows = rows_per_frame(shard.geometry(), batch->max_terms(), send_queue);
  if (frame_index_bytes(FrameKind::kDecline, batch->max_terms()) + kFrameHeaderBytes >
          kMaxFrameBytes ||
      rows == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert server: ", batch->max_terms(), " terms a batch do not fit one frame"));
  }
  if (frames_of_batch(rows, batch->max_terms()) > send_queue) {
    return absl::InvalidArgumentError(
        absl::StrCat("expert server: a batch has more answer frames than the "
                     "transport's send queue of ",
                     send_queue));
  }
  ASSIGN_OR_RETURN(auto stream, device.create_stream());
  return std::unique_ptr<ExpertServer>(new ExpertServer(std::move(transport), std::move(stream),
                                                        std::move(batch), shard.geometry(), config,
                                                        std::move(on_lost)));
}

ExpertServer::ExpertServer(std::unique_ptr<Transport> transport,
                           std::unique_ptr<kernels::Stream> stream,
                           std::unique_ptr<ExpertBatch> batch, const ExpertGeometry& geometry,
                           const ExpertServerConfig& config, CoordinatorLost on_lost)
    : transport_(std::move(transport)),
      device_frames_(transport_->caps().device_memory),
      stream_(std::move(stream)),
      batch_(std::move(batch)),
      geometry_(geometry),
      config_(config),
      on_lost_(std::move(on_lost)),
      rows_per_answer_(
          rows_per_frame(geometry_, batch_->max_terms(), transport_->caps().send_queue)),
      batch_frames_(frames_of_batch(rows_per_answer_, batch_->max_terms())),
      pool_frames_(std::min(2 * batch_frames_, transport_->caps().send_queue)),
      loop_(*transport_, *this) {}

ExpertServer::~ExpertServer() {
  stop();
  // What is running, or was declined for its time and runs still, uses memory that goes now. Past
  // the wait the device keeps that memory, and the waker may still be woken.
  if (absl::IsDeadlineExceeded(stream_->synchronize(absl::Now() + kLastWait)))
    (void)batch_done_.release();
  (void)transport_->shut_down(absl::Now() + absl::Seconds(2));
}

void ExpertServer::start() { loop_.start(); }
void ExpertServer::stop() { loop_.stop(); }

absl::StatusOr<std::string> ExpertServer::open(const Session& session, const Party& coordinator,
                                               const Party& self, absl::Time deadline) {
  absl::StatusOr<std::string> address = absl::InternalError("not run");
  RETURN_IF_ERROR(loop_.call(
      [&] {
        if (const PeerId before = peer_of(session.coordinator_id); before != 0) drop(before);
        auto link = std::make_unique<Coordinator>();
        link->session = session;
        link->party = coordinator;
        link->self = self;
        link->waiting.reserve(config_.window);
        if (const absl::Status planned = plan_answers(*link); !planned.ok()) {
          address = planned;
          return;
        }
        const absl::StatusOr<PeerId> peer = transport_->open_link();
        if (!peer.ok()) {
          address = peer.status();
          return;
        }
        coordinators_[*peer] = std::move(link);
        address = transport_->address(*peer);
      },
      deadline));
  return address;
}

size_t ExpertServer::answer_bytes_each() const {
  return rows_per_answer_ * geometry_.hidden * kernels::dtype_bytes(geometry_.wire_dtype);
}

absl::Status ExpertServer::plan_answers(Coordinator& link) {
  link.answers =
      AlignedBlock(pool_frames_, buffer_bytes(geometry_, rows_per_answer_, batch_->max_terms()));
  for (int i = 0; i < pool_frames_; ++i) link.free.push_back(i);
  if (!device_frames_) return absl::OkStatus();
  if (!spare_answers_.empty()) {
    link.device_answers = std::move(spare_answers_.back());
    spare_answers_.pop_back();
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(link.device_answers, kernels::Buffer::allocate(
                                            stream_->device(), pool_frames_ * answer_bytes_each()));
  return absl::OkStatus();
}

absl::Status ExpertServer::connect(uint64_t coordinator_id, const std::string& remote_address,
                                   absl::Time deadline) {
  absl::Status status;
  RETURN_IF_ERROR(loop_.call(
      [&] {
        const PeerId peer = peer_of(coordinator_id);
        status = peer != 0
                     ? transport_->connect(peer, remote_address)
                     : absl::NotFoundError(absl::StrCat("no link of coordinator ", coordinator_id));
      },
      deadline));
  return status;
}

absl::Status ExpertServer::close(uint64_t coordinator_id, absl::Time deadline) {
  return loop_.call(
      [&] {
        if (const PeerId peer = peer_of(coordinator_id); peer != 0) drop(peer);
      },
      deadline);
}

absl::Status ExpertServer::call(std::function<void()> change, absl::Time deadline) {
  absl::Status ended;
  RETURN_IF_ERROR(loop_.call(
      [&] {
        ended = end_batch(deadline);
        if (ended.ok()) change();
      },
      deadline));
  return ended;
}

PeerId ExpertServer::peer_of(uint64_t coordinator_id) const {
  for (const auto& [peer, link] : coordinators_) {
    if (link->session.coordinator_id == coordinator_id) return peer;
  }
  return 0;
}

void ExpertServer::drop(PeerId peer) {
  const auto found = coordinators_.find(peer);
  for (const Held& held : found->second->waiting) transport_->release(held.receipt);
  found->second->waiting.clear();
  transport_->close_peer(peer);
  std::unique_ptr<Coordinator> dropped = std::move(found->second);
  coordinators_.erase(found);
  if (static_cast<int>(dropped->free.size()) < pool_frames_) {
    ending_[peer] = std::move(dropped);
  } else {
    retire(std::move(dropped));
  }
}

void ExpertServer::retire(std::unique_ptr<Coordinator> coordinator) {
  if (device_frames_) spare_answers_.push_back(std::move(coordinator->device_answers));
}

Refusal ExpertServer::check(const Coordinator& from, const FrameView& view) const {
  if (view.header.kind != FrameKind::kDispatch || !batch_->ever_fits(view))
    return Refusal::kMalformed;
  return check_parties(view.header, from.session, from.self, from.party);
}

void ExpertServer::take(PeerId peer, uint64_t receipt, Refusal parsed, const FrameView& view) {
  const auto found = coordinators_.find(peer);
  Refusal refusal = found == coordinators_.end() ? Refusal::kStranger : parsed;
  if (refusal == Refusal::kNone) refusal = check(*found->second, view);
  if (refusal == Refusal::kNone) {
    found->second->waiting.push_back({receipt, view});
    return;
  }
  refusals_.add(refusal);
  transport_->release(receipt);
}

void ExpertServer::on_message(PeerId peer, uint64_t receipt, std::span<const std::byte> bytes) {
  FrameView view;
  // Where rows belong in device memory, a frame without is no dispatch of ours.
  const Refusal parsed =
      device_frames_ ? Refusal::kMalformed : parse_frame(bytes, config_.limits, &view);
  take(peer, receipt, parsed, view);
}

void ExpertServer::on_device_message(PeerId peer, uint64_t receipt, std::span<const std::byte> head,
                                     std::span<const std::byte> device_body) {
  FrameView view;
  const Refusal parsed = parse_device_frame(head, device_body, config_.limits, &view);
  take(peer, receipt, parsed, view);
  if (is_broken(parsed)) {
    on_peer_lost(peer,
                 absl::DataLossError(absl::StrCat("the coordinator sent a ", refusal_name(parsed),
                                                  " frame: ", device_body.size(),
                                                  " bytes of rows behind ", describe_head(head))));
  }
}

void ExpertServer::on_sent(PeerId peer, uint64_t cookie, const absl::Status&) {
  auto found = coordinators_.find(peer);
  if (found != coordinators_.end()) {
    found->second->free.push_back(static_cast<int>(cookie));
    return;
  }
  found = ending_.find(peer);
  if (found == ending_.end()) return;
  found->second->free.push_back(static_cast<int>(cookie));
  if (static_cast<int>(found->second->free.size()) < pool_frames_) return;
  retire(std::move(found->second));
  ending_.erase(found);
}

void ExpertServer::on_peer_lost(PeerId peer, const absl::Status& why) {
  const auto found = coordinators_.find(peer);
  if (found == coordinators_.end()) return;
  const uint64_t id = found->second->session.coordinator_id;
  drop(peer);
  if (on_lost_) on_lost_(id, why);
}

void ExpertServer::on_loop_failed(const absl::Status& status) {
  while (!coordinators_.empty()) on_peer_lost(coordinators_.begin()->first, status);
}

// One batch at a time; coordinators take turns.
absl::Time ExpertServer::on_turn() {
  if (running_) {
    const absl::Time look = look_at_batch();
    if (running_) return look;
  }
  const auto ready = [&](const auto& entry) {
    return !entry.second->waiting.empty() &&
           static_cast<int>(entry.second->free.size()) >= batch_frames_;
  };
  auto next = std::find_if(coordinators_.upper_bound(last_served_), coordinators_.end(), ready);
  if (next == coordinators_.end())
    next = std::find_if(coordinators_.begin(), coordinators_.end(), ready);
  if (next == coordinators_.end()) return absl::InfiniteFuture();
  last_served_ = next->first;
  serve(next->first, *next->second);
  return look_at_batch();
}

// The oldest frame, with all others of its exchange that are here.
void ExpertServer::serve(PeerId peer, Coordinator& coordinator) {
  const FrameHeader question = coordinator.waiting.front().view.header;
  batch_->clear();
  std::vector<Held>& waiting = coordinator.waiting;
  // Taken frames move to the front, [0, taken).
  size_t taken = 0;
  for (size_t i = 0; i < waiting.size(); ++i) {
    if (!same_exchange(waiting[i].view.header, question) || !batch_->add(waiting[i].view)) continue;
    counters_.rows += waiting[i].view.header.row_count;
    std::swap(waiting[i], waiting[taken++]);
  }
  CHECK(taken > 0);
  counters_.frames += taken;
  start_batch(peer, question);
  for (size_t i = 0; i < taken; ++i) {
    device_frames_ ? transport_->release_after(waiting[i].receipt, *stream_)
                   : transport_->release(waiting[i].receipt);
  }
  waiting.erase(waiting.begin(), waiting.begin() + taken);
}

void ExpertServer::start_batch(PeerId peer, const FrameHeader& question) {
  Running& running = running_.emplace();
  running.peer = peer;
  running.question = question;
  running.deadline = absl::Now() + config_.batch_timeout;
  running.status = batch_->start(*stream_);
  if (!running.status.ok() || batch_->slots().empty()) return;
  (void)batch_done_->take();
  (void)batch_done_->divert_to(loop_.wake_fd());
  absl::StatusOr<kernels::Event> done = stream_->record(batch_done_.get());
  running.status = done.status();
  if (done.ok()) running.done = *std::move(done);
}

// Answers if it has ended. Returns when to look again.
absl::Time ExpertServer::look_at_batch() {
  if (running_->status.ok()) {
    const absl::Time now = absl::Now();
    if (running_->done.ready()) {
      running_->status = running_->done.wait_until(absl::InfinitePast());
    } else if (now < running_->deadline) {
      return std::min(running_->deadline, now + kLookForErrors);
    } else {
      running_->status = stream_->synchronize(absl::InfinitePast());  // its memory is lost
    }
  }
  (void)batch_done_->end_divert();
  const Running ended = *std::exchange(running_, std::nullopt);
  batch_->finish(ended.status);
  counters_.failed_batches += !ended.status.ok();
  // A late device may come back, and a call may have been refused; a stream's error stays.
  const bool failed =
      !ended.status.ok() && !absl::IsDeadlineExceeded(ended.status) && !stream_->record().ok();
  if (failed && !std::exchange(device_failed_, true) && config_.on_device_failed)
    config_.on_device_failed(ended.status);
  counters_.terms += batch_->slots().size();
  counters_.declined_terms += batch_->declined().size();
  // A coordinator whose link ended meanwhile gets its rows computed anew by somebody else.
  if (const auto found = coordinators_.find(ended.peer); found != coordinators_.end())
    answer(ended.peer, *found->second, ended.question);
  return absl::InfinitePast();
}

absl::Status ExpertServer::end_batch(absl::Time deadline) {
  if (!running_) return absl::OkStatus();
  // It keeps its error.
  running_->done.wait_until(std::min(deadline, running_->deadline)).IgnoreError();
  (void)look_at_batch();
  return running_ ? absl::DeadlineExceededError("a batch on the device did not end in time")
                  : absl::OkStatus();
}

}  // namespace brigade::expert_parallel
