#include "runtime/worker/worker_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::runtime::worker {
namespace {

constexpr int kMaxRanks = 1 << 16, kMaxRows = 1 << 20;
constexpr size_t kMaxAddressBytes = 4096;

// A place that is taken, or a name, stays so.
bool is_final(absl::StatusCode code) {
  return is_refusal(code) || code == absl::StatusCode::kResourceExhausted ||
         code == absl::StatusCode::kAlreadyExists;
}

// "" or the field that no honest coordinator sends.
std::string fault_of(const Registered& terms) {
  const auto out_of = [](const char* field, int64_t value, int64_t low, int64_t high) {
    return absl::StrCat(field, " is ", value, ", must be from ", low, " to ", high);
  };
  if (terms.num_ranks < 1 || terms.num_ranks > kMaxRanks)
    return out_of("num_ranks", terms.num_ranks, 1, kMaxRanks);
  if (terms.rank < 0 || terms.rank >= terms.num_ranks)
    return out_of("rank", terms.rank, 0, terms.num_ranks - 1);
  if (terms.microbatches < 1 || terms.microbatches > 64)
    return out_of("microbatches", terms.microbatches, 1, 64);
  if (terms.max_rows < 1 || terms.max_rows > kMaxRows)
    return out_of("max_rows", terms.max_rows, 1, kMaxRows);
  if (terms.data_address.empty() || terms.data_address.size() > kMaxAddressBytes)
    return out_of("data_address's size", terms.data_address.size(), 1, kMaxAddressBytes);
  if (terms.heartbeat_interval < absl::Milliseconds(1))
    return "heartbeat_interval_ms must be at least 1";
  if (terms.lost_after < 2 * terms.heartbeat_interval)
    return "lost_after_ms must be at least twice heartbeat_interval_ms";
  return "";
}

}  // namespace

WorkerSession::WorkerSession(SessionConfig config) : config_(std::move(config)) {}

Actions WorkerSession::start(absl::Time now) {
  Actions actions;
  alone_since_ = now;
  dial(now, &actions);
  return actions;
}

void WorkerSession::dial(absl::Time now, Actions* actions) {
  do {
    incarnation_ = config_.random();
  } while (incarnation_ == 0);
  ++attempts_;
  state_ = State::kRegistering;
  dial_at_ = absl::InfiniteFuture();
  answer_by_ = now + config_.answer_timeout;
  actions->push_back(Dial{incarnation_});
}

void WorkerSession::note(const std::string& text, absl::Time now, Actions* actions) {
  if (notes_.worth_saying(text, now)) actions->push_back(Note{text});
}

void WorkerSession::back_off(absl::Time now) {
  dial_at_ = now + redial_delay(attempts_ - 1, config_.first_delay, config_.longest_delay,
                                config_.random());
  state_ = State::kBackingOff;
}

void WorkerSession::end(int code, const std::string& reason, Actions* actions) {
  if (registered()) actions->push_back(CloseLink{});
  if (has_stream()) actions->push_back(HangUp{});
  state_ = State::kEnded;
  actions->push_back(Exit{code, reason});
}

void WorkerSession::lose(const std::string& why, bool hang_up, absl::Time now, Actions* actions) {
  const bool was_registered = registered();
  last_loss_ = why;
  alone_since_ = std::min(alone_since_, now);
  if (hang_up) actions->push_back(HangUp{});
  if (was_registered) {
    actions->push_back(AbandonLoads{});
    actions->push_back(CloseLink{});
  }
  beat_at_ = answer_by_ = absl::InfiniteFuture();
  state_ = State::kBackingOff;  // end() finds nothing left to close
  if (leaving()) return end(kExitOk, absl::StrCat("left: ", why), actions);
  if (was_registered && config_.exit_when_lost)
    return end(kExitLost,
               absl::StrCat("the coordinator at ", config_.coordinator, " is lost: ", why),
               actions);
  note(was_registered ? absl::StrCat("the coordinator at ", config_.coordinator, " is lost: ", why,
                                     "; dialling again")
                      : absl::StrCat("no coordinator at ", config_.coordinator, " yet: ", why),
       now, actions);
  back_off(now);
}

Actions WorkerSession::on_message(uint64_t incarnation, const CoordinatorMessage& message,
                                  absl::Time now) {
  Actions actions;
  if (incarnation != incarnation_ || !has_stream()) return actions;
  heard_ = now;
  const bool is_answer = std::holds_alternative<Registered>(message);
  const bool may_come_first = is_answer || std::holds_alternative<Dismissed>(message) ||
                              std::holds_alternative<CoordinatorHeartbeat>(message);
  if (is_answer ? state_ != State::kRegistering : !registered() && !may_come_first) {
    lose(
        is_answer ? "it registered this worker twice" : "it spoke before it registered this worker",
        true, now, &actions);
    return actions;
  }
  std::visit([&](const auto& kind) { on(kind, now, &actions); }, message);
  return actions;
}

void WorkerSession::on(const Registered& message, absl::Time now, Actions* actions) {
  if (const std::string fault = fault_of(message); !fault.empty())
    return lose(absl::StrCat("its Registered is wrong: ", fault), true, now, actions);
  terms_ = message;
  first_load_ = true;
  sequence_ = 0;
  answer_by_ = absl::InfiniteFuture();
  beat_at_ = now + terms_.heartbeat_interval;
  state_ = State::kLinking;
  actions->push_back(OpenLink{terms_, incarnation_});
}

void WorkerSession::on(const LinkConnected&, absl::Time now, Actions* actions) {
  if (state_ == State::kServing) return;
  state_ = State::kServing;
  attempts_ = 0;
  alone_since_ = absl::InfiniteFuture();
  notes_.forget();
  note(absl::StrCat("serving the coordinator at ", config_.coordinator, " as rank ", terms_.rank),
       now, actions);
}

void WorkerSession::on(const LoadExperts& message, absl::Time, Actions* actions) {
  actions->push_back(QueueLoad{message, std::exchange(first_load_, false)});
}

void WorkerSession::on(const ReleaseExperts& message, absl::Time, Actions* actions) {
  actions->push_back(QueueRelease{message});
}

// A coordinator may take its time to answer a registration as long as it shows that it lives.
void WorkerSession::on(const CoordinatorHeartbeat&, absl::Time now, Actions*) {
  if (state_ == State::kRegistering) answer_by_ = now + config_.answer_timeout;
}

void WorkerSession::on(const Dismissed& message, absl::Time, Actions* actions) {
  end(kExitOk, absl::StrCat("dismissed by the coordinator: ", message.reason), actions);
}

Actions WorkerSession::on_stream_ended(uint64_t incarnation, const absl::Status& why,
                                       absl::Time now) {
  Actions actions;
  if (incarnation != incarnation_ || !has_stream()) return actions;
  if (state_ == State::kRegistering && is_final(why.code())) {
    state_ = State::kBackingOff;  // there is no stream to end
    end(kExitRefused,
        absl::StrCat("the coordinator at ", config_.coordinator, " refuses: ", text_of(why)),
        &actions);
    return actions;
  }
  lose(why.ok() ? "it ended the stream" : text_of(why), false, now, &actions);
  return actions;
}

Actions WorkerSession::on_link_opened(uint64_t incarnation,
                                      const absl::StatusOr<std::string>& address, absl::Time now) {
  Actions actions;
  if (incarnation != incarnation_ || !registered()) return actions;
  if (!address.ok()) {
    lose(absl::StrCat("no data link to it: ", text_of(address.status())), true, now, &actions);
  } else {
    actions.push_back(Say{LinkReady{*address}});
  }
  return actions;
}

Actions WorkerSession::on_link_lost(uint64_t incarnation, const absl::Status& why, absl::Time now) {
  Actions actions;
  if (incarnation != incarnation_ || !registered()) return actions;
  lose(absl::StrCat("its data link has ended: ", text_of(why)), true, now, &actions);
  return actions;
}

Actions WorkerSession::on_report(uint64_t incarnation, WorkerMessage report) {
  Actions actions;
  if (incarnation == incarnation_ && registered()) actions.push_back(Say{std::move(report)});
  return actions;
}

Actions WorkerSession::on_stop(const std::string& reason, absl::Time now) {
  Actions actions;
  if (state_ == State::kEnded) return actions;
  if (leaving()) {
    end(kExitOk, absl::StrCat(reason, " again: stopping at once"), &actions);
  } else if (!registered()) {
    end(kExitOk, absl::StrCat(reason, ": stopping, no coordinator uses this worker"), &actions);
  } else {
    leave_by_ = now + config_.grace;
    actions.push_back(Note{absl::StrCat(reason, ": leaving, serving until dismissed, for at most ",
                                        absl::FormatDuration(config_.grace))});
    actions.push_back(Say{Leaving{reason}});
  }
  return actions;
}

void WorkerSession::beat(absl::Time now, Actions* actions) {
  actions->push_back(Say{WorkerHeartbeat{.sequence = ++sequence_}});
  beat_at_ = now + terms_.heartbeat_interval;
}

absl::Time WorkerSession::give_up_at() const {
  return registered() ? absl::InfiniteFuture() : alone_since_ + config_.rejoin_timeout;
}

Actions WorkerSession::on_time(absl::Time now) {
  Actions actions;
  if (state_ == State::kEnded || state_ == State::kIdle) return actions;
  // Whoever comes late was asleep himself and has not listened: what came meanwhile gets time to be
  // read.
  if (registered() && now - next_time() > terms_.lost_after / 4)
    heard_ = std::max(heard_, now - terms_.lost_after / 2);
  if (now >= leave_by_) {
    end(kExitOk, "the grace time is over: leaving without being dismissed", &actions);
  } else if (now >= give_up_at()) {
    end(kExitLost,
        absl::StrCat("no coordinator at ", config_.coordinator, " for ",
                     absl::FormatDuration(config_.rejoin_timeout), ": ", last_loss_),
        &actions);
  } else if (registered() && now - heard_ >= terms_.lost_after) {
    lose(absl::StrCat("silent for ", absl::FormatDuration(terms_.lost_after)), true, now, &actions);
  } else if (now >= answer_by_) {
    lose(absl::StrCat("no answer to the registration in ",
                      absl::FormatDuration(config_.answer_timeout)),
         true, now, &actions);
  } else if (now >= dial_at_) {
    dial(now, &actions);
  } else if (now >= beat_at_) {
    beat(now, &actions);
  }
  return actions;
}

absl::Time WorkerSession::next_time() const {
  if (state_ == State::kEnded || state_ == State::kIdle) return absl::InfiniteFuture();
  absl::Time next = std::min({dial_at_, answer_by_, beat_at_, leave_by_, give_up_at()});
  if (registered()) next = std::min(next, heard_ + terms_.lost_after);
  return next;
}

}  // namespace brigade::runtime::worker
