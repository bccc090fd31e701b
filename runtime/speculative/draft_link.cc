#include "runtime/speculative/draft_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/build_version.h"
#include "kernels/core/status.h"

namespace brigade::runtime {

DraftLink::DraftLink(const DraftLinkOptions& options, uint64_t id,
                     std::shared_ptr<kernels::Waker> waker, absl::Time now)
    : options_(options),
      id_(id),
      waker_(std::move(waker)),
      opened_at_(now),
      commands_(options.max_sequences),
      heard_at_(now) {}

absl::Status DraftLink::said(DraftWorkerSays message, absl::Time now) {
  const bool greeting = std::holds_alternative<DraftHello>(message);
  const bool comparing = std::holds_alternative<VocabularyPart>(message);
  std::unique_lock lock(mutex_);
  heard_at_ = now;
  const State state = state_;
  if (state == State::kEnded) return absl::CancelledError("the stream has ended");
  const State expected = greeting    ? State::kGreeting
                         : comparing ? State::kComparing
                                     : State::kServing;
  if (state != expected) {
    return absl::InvalidArgumentError(greeting ? "hello: said twice" : "spoke out of turn");
  }
  RETURN_IF_ERROR(std::visit([&](auto& what) { return on(std::move(what), now); }, message));
  const bool output = answer_due_;
  lock.unlock();
  if (output) waker_->wake();
  return absl::OkStatus();
}

absl::Status DraftLink::check(const DraftHello& hello) const {
  if (hello.worker_id.empty()) return absl::InvalidArgumentError("worker_id is empty");
  if (hello.build_version != kBuildVersion) {
    return absl::FailedPreconditionError(absl::StrCat("build_version is ", hello.build_version,
                                                      ", the coordinator's is ", kBuildVersion));
  }
  if (options_.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        "the target has no tokenizer.json, so no draft's vocabulary can be compared with its");
  }
  if (hello.max_sequences < 1 || hello.max_context < 2) {
    return absl::InvalidArgumentError("max_sequences or max_context is too small");
  }
  return absl::OkStatus();
}

absl::Status DraftLink::on(DraftHello hello, absl::Time now) {
  RETURN_IF_ERROR(check(hello));
  worker_id_ = std::move(hello.worker_id);
  max_context_ = hello.max_context;
  max_sequences_ = hello.max_sequences;
  answer_due_ = true;
  if (hello.vocabulary_hash == options_.tokenizer->vocabulary_hash()) {
    ping_due_ = now + options_.ping_interval;
    state_ = State::kServing;
    if (options_.log) options_.log(absl::StrCat("draft worker ", worker_id_, " has joined"));
  } else {
    comparison_.emplace(*options_.tokenizer);
    state_ = State::kComparing;
  }
  return absl::OkStatus();
}

absl::Status DraftLink::on(const VocabularyPart& part, absl::Time) {
  return comparison_->take(part);
}

absl::Status DraftLink::on(ChunkMessages message, absl::Time) {
  chunks_ += static_cast<int64_t>(message.chunks.size());
  for (ChunkMessage& chunk : message.chunks) {
    waiting_tokens_ += chunk.tokens.size() + chunk.law_tokens.size() + 1;
    arrivals_.chunks.push_back(std::move(chunk));
  }
  arrived_ = true;
  return absl::OkStatus();
}

absl::Status DraftLink::on(DraftNack nack, absl::Time) {
  ++waiting_tokens_;
  ++nacks_;
  arrivals_.nacks.push_back(std::move(nack));
  arrived_ = true;
  return absl::OkStatus();
}

absl::Status DraftLink::on(const DraftPong& pong, absl::Time now) {
  if (pong.number != pings_) return absl::OkStatus();  // a late one
  pong_ = pong;
  round_trip_ = now - pinged_at_;
  return absl::OkStatus();
}

bool DraftLink::may_read() const {
  std::lock_guard lock(mutex_);
  return waiting_tokens_ < options_.max_waiting_tokens;
}

std::optional<DraftCoordinatorSays> DraftLink::next(absl::Time now) {
  std::lock_guard lock(mutex_);
  if (std::exchange(answer_due_, false)) {
    if (state_ == State::kComparing) return VocabularyWanted{};
    return CoordinatorHello{.build_version = kBuildVersion,
                            .vocabulary_hash = options_.tokenizer->vocabulary_hash(),
                            .vocabulary_size = options_.tokenizer->vocab_size(),
                            .ping_interval_ms = absl::ToInt64Milliseconds(options_.ping_interval),
                            .lost_after_ms = absl::ToInt64Milliseconds(options_.lost_after)};
  }
  if (state_ != State::kServing) return std::nullopt;
  if (now >= ping_due_) {
    ping_due_ = now + options_.ping_interval;
    pinged_at_ = now;
    return DraftPing{++pings_};
  }
  if (commands_.empty()) return std::nullopt;
  DraftCommands commands;
  commands_.take(&commands);
  return commands;
}

absl::Status DraftLink::overdue(absl::Time now, absl::Time* next_check) const {
  std::lock_guard lock(mutex_);
  if (stalled_) return absl::ResourceExhaustedError("the worker takes no commands");
  if (bad_messages_ > options_.max_bad_messages) {
    return absl::InvalidArgumentError("too many drafts that do not hold together");
  }
  if (state_ != State::kServing) {
    const absl::Time limit = opened_at_ + options_.greeting_timeout;
    *next_check = limit;
    if (now < limit) return absl::OkStatus();
    return absl::DeadlineExceededError("no hello and vocabulary in time");
  }
  *next_check = std::min(ping_due_, heard_at_ + options_.lost_after);
  // While it is not read it may well be speaking.
  if (now - heard_at_ < options_.lost_after || waiting_tokens_ >= options_.max_waiting_tokens) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("silent for ", absl::FormatDuration(options_.lost_after)));
}

void DraftLink::end() {
  std::lock_guard lock(mutex_);
  state_ = State::kEnded;
  commands_.clear();
}

template <typename Push>
void DraftLink::push(Push push) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    if (state_ != State::kServing) return;
    was_empty = commands_.empty();
    if (!push(commands_)) stalled_ = true;
  }
  if (was_empty || stalled_) waker_->wake();
}

void DraftLink::open(OpenDraft open) {
  push([&](CommandQueue& commands) { return commands.open(std::move(open)); });
}

void DraftLink::commit(uint64_t sequence, uint64_t epoch, int base_length,
                       std::span<const int32_t> tokens, int wanted) {
  push([&](CommandQueue& commands) {
    return commands.commit(sequence, epoch, base_length, tokens, wanted);
  });
}

void DraftLink::close(uint64_t sequence, uint64_t epoch) {
  push([&](CommandQueue& commands) { return commands.close(sequence, epoch); });
}

bool DraftLink::take(DraftArrivals* arrivals) {
  if (!arrived_) return false;
  arrivals->chunks.clear();
  arrivals->nacks.clear();
  bool had_no_room = false;
  {
    std::lock_guard lock(mutex_);
    std::swap(*arrivals, arrivals_);
    had_no_room = waiting_tokens_ >= options_.max_waiting_tokens;
    waiting_tokens_ = 0;
    arrived_ = false;
  }
  if (had_no_room) waker_->wake();
  return true;
}

void DraftLink::count_bad_message() {
  if (++bad_messages_ > options_.max_bad_messages) waker_->wake();
}

DraftLinkStatus DraftLink::status() const {
  std::lock_guard lock(mutex_);
  const State state = state_;
  return {.worker_id = worker_id_,
          .stream = id_,
          .state = state == State::kServing     ? "serving"
                   : state == State::kComparing ? "comparing"
                   : state == State::kGreeting  ? "greeting"
                                                : "ended",
          .serving = state == State::kServing,
          .open_sequences = open_sequences_,
          .max_sequences = max_sequences_,
          .round_trip = round_trip_,
          .steps = pong_.steps,
          .rows = pong_.rows,
          .drafted = pong_.drafted,
          .chunks = chunks_,
          .nacks = nacks_,
          .bad_messages = bad_messages_};
}

}  // namespace brigade::runtime
