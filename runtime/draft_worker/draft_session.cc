#include "runtime/draft_worker/draft_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/build_version.h"

namespace brigade::runtime::draft_worker {
DraftSession::DraftSession(SessionConfig config) : config_(std::move(config)) {}

Actions DraftSession::start(absl::Time now) {
  Actions actions;
  alone_since_ = now;
  dial(now, &actions);
  return actions;
}

void DraftSession::dial(absl::Time now, Actions* actions) {
  ++attempt_;
  state_ = State::kGreeting;
  dial_at_ = absl::InfiniteFuture();
  answer_by_ = now + config_.answer_timeout;
  actions->push_back(Dial{attempt_});
}

void DraftSession::note(const std::string& text, absl::Time now, Actions* actions) {
  if (notes_.worth_saying(text, now)) actions->push_back(Note{text});
}

void DraftSession::end(int code, const std::string& reason, Actions* actions) {
  if (has_stream()) actions->push_back(HangUp{});
  state_ = State::kEnded;
  actions->push_back(Exit{code, reason});
}

void DraftSession::lose(const std::string& why, bool hang_up, absl::Time now, Actions* actions) {
  const bool served = state_ == State::kServing;
  last_loss_ = why;
  alone_since_ = std::min(alone_since_, now);
  if (hang_up) actions->push_back(HangUp{});
  if (served) actions->push_back(ForgetAll{});
  answer_by_ = absl::InfiniteFuture();
  state_ = State::kBackingOff;
  note(served ? absl::StrCat("the coordinator at ", config_.coordinator, " is lost: ", why,
                             "; dialling again")
              : absl::StrCat("no coordinator at ", config_.coordinator, " yet: ", why),
       now, actions);
  dial_at_ =
      now + redial_delay(failures_++, config_.first_delay, config_.longest_delay, config_.random());
}

Actions DraftSession::on_message(uint64_t attempt, DraftCoordinatorSays message, absl::Time now) {
  Actions actions;
  if (attempt != attempt_ || !has_stream()) return actions;
  heard_ = now;
  const bool greeting = std::holds_alternative<CoordinatorHello>(message) ||
                        std::holds_alternative<VocabularyWanted>(message);
  if (greeting != (state_ == State::kGreeting)) {
    lose(greeting ? "it greeted twice" : "it spoke before it greeted", true, now, &actions);
    return actions;
  }
  std::visit([&](auto& what) { on(std::move(what), now, &actions); }, message);
  return actions;
}

void DraftSession::on(CoordinatorHello message, absl::Time now, Actions* actions) {
  if (message.build_version != kBuildVersion ||
      message.vocabulary_hash != config_.vocabulary_hash) {
    return lose("its hello has another version or vocabulary", true, now, actions);
  }
  state_ = State::kServing;
  failures_ = 0;
  lost_after_ = absl::Milliseconds(message.lost_after_ms);
  answer_by_ = absl::InfiniteFuture();
  alone_since_ = absl::InfiniteFuture();
  notes_.forget();
  note(absl::StrCat("drafting for the coordinator at ", config_.coordinator), now, actions);
}

// The answer to what is sent now is the end of the stream, with a sentence.
void DraftSession::on(VocabularyWanted, absl::Time, Actions* actions) {
  actions->push_back(SendVocabulary{});
}

void DraftSession::on(DraftCommands message, absl::Time, Actions* actions) {
  actions->push_back(Obey{std::move(message)});
}

void DraftSession::on(DraftPing message, absl::Time, Actions* actions) {
  actions->push_back(Answer{message});
}

Actions DraftSession::on_stream_ended(uint64_t attempt, const absl::Status& why, absl::Time now) {
  Actions actions;
  if (attempt != attempt_ || !has_stream()) return actions;
  // Too many draft workers may become fewer; vocabulary, version and token stay what they are.
  if (state_ == State::kGreeting && is_refusal(why.code())) {
    state_ = State::kBackingOff;  // there is no stream to end
    end(kExitRefused,
        absl::StrCat("the coordinator at ", config_.coordinator, " refuses: ", text_of(why)),
        &actions);
    return actions;
  }
  lose(why.ok() ? "it ended the stream" : text_of(why), false, now, &actions);
  return actions;
}

Actions DraftSession::on_stop(const std::string& reason) {
  Actions actions;
  if (state_ != State::kEnded) end(kExitOk, absl::StrCat(reason, ": leaving"), &actions);
  return actions;
}

Actions DraftSession::on_time(absl::Time now) {
  Actions actions;
  if (state_ == State::kEnded || state_ == State::kIdle) return actions;
  // Whoever comes late was asleep himself and has not listened: what came meanwhile gets time to be
  // read.
  if (state_ == State::kServing && now - next_time() > lost_after_ / 4) {
    heard_ = std::max(heard_, now - lost_after_ / 2);
  }
  if (now >= alone_since_ + config_.rejoin_timeout) {
    end(kExitLost,
        absl::StrCat("no coordinator at ", config_.coordinator, " for ",
                     absl::FormatDuration(config_.rejoin_timeout), ": ", last_loss_),
        &actions);
  } else if (state_ == State::kServing && now - heard_ >= lost_after_) {
    lose(absl::StrCat("silent for ", absl::FormatDuration(lost_after_)), true, now, &actions);
  } else if (now >= answer_by_) {
    lose(absl::StrCat("no hello in ", absl::FormatDuration(config_.answer_timeout)), true, now,
         &actions);
  } else if (now >= dial_at_) {
    dial(now, &actions);
  }
  return actions;
}

absl::Time DraftSession::next_time() const {
  if (state_ == State::kEnded || state_ == State::kIdle) return absl::InfiniteFuture();
  const absl::Time next = std::min({dial_at_, answer_by_, alone_since_ + config_.rejoin_timeout});
  return state_ == State::kServing ? std::min(next, heard_ + lost_after_) : next;
}

}  // namespace brigade::runtime::draft_worker
