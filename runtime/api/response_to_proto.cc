#include "runtime/api/response_to_proto.h"

#include "absl/time/time.h"
#include "kernels/core/check.h"
#include "runtime/api/safe_text.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

// The stream promises valid UTF-8; a broken promise must not break the client's parser.
std::string text_field(const std::string& text) {
  return is_valid_utf8(text) ? text : safe_text(text, text.size() * 3);
}

void fill_logprob(const TokenLogprob& from, const ServedModel& model, v1::TokenLogprob* to) {
  to->set_logprob(from.logprob);
  to->set_rank(from.rank);
  for (const auto& [id, logprob] : from.top) {
    v1::TokenLogprob::Alternative* alternative = to->add_top();
    alternative->set_id(id);
    alternative->set_logprob(logprob);
    if (model.piece) alternative->set_piece(model.piece(id));
  }
}

v1::FinishReason reason_to_proto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kNone:
    case FinishReason::kCancelled:
    case FinishReason::kError:
      break;
  }
  CHECK(false);  // these end a call with a status, not with a message
}

}  // namespace

v1::Token token_to_proto(const TokenEvent& event, const ServedModel& model) {
  CHECK(event.token.has_value());
  v1::Token token;
  token.set_sample_index(event.sample_index);
  token.set_id(*event.token);
  token.set_piece(event.piece);
  token.set_text(text_field(event.text));
  if (event.logprob) fill_logprob(*event.logprob, model, token.mutable_logprob());
  return token;
}

v1::Finished finished_to_proto(const TokenEvent& event, const v1::EffectiveSettings& settings) {
  v1::Finished finished;
  finished.set_sample_index(event.sample_index);
  finished.set_reason(reason_to_proto(event.finish));
  if (!event.token.has_value()) finished.set_text(text_field(event.text));
  finished.set_stop_string(text_field(event.stop_match));
  if (event.stop_token >= 0) finished.set_stop_token_id(event.stop_token);
  v1::Usage* usage = finished.mutable_usage();
  usage->set_prompt_tokens(event.usage.prompt_tokens);
  usage->set_cached_prompt_tokens(event.usage.cached_prompt_tokens);
  usage->set_completion_tokens(event.usage.completion_tokens);
  usage->set_preemptions(event.usage.preemptions);
  usage->set_target_passes(event.usage.target_passes);
  usage->set_drafted_tokens(event.usage.drafted_tokens);
  usage->set_accepted_drafts(event.usage.accepted_drafts);
  const SequenceUsage& used = event.usage;
  usage->mutable_drafted_by_position()->Add(used.drafted_by_position.begin(),
                                            used.drafted_by_position.end());
  usage->mutable_accepted_by_position()->Add(used.accepted_by_position.begin(),
                                             used.accepted_by_position.end());
  usage->set_run_ahead_drafts(used.run_ahead_drafts);
  usage->set_early_drafts(used.early_drafts);
  usage->set_draft_wait(absl::ToDoubleSeconds(used.draft_wait));
  v1::Timing* timing = finished.mutable_timing();
  timing->set_queued(absl::ToDoubleSeconds(event.queued));
  timing->set_first_token(absl::ToDoubleSeconds(event.first_token));
  timing->set_total(absl::ToDoubleSeconds(event.total));
  *finished.mutable_settings() = settings;
  return finished;
}

}  // namespace brigade::runtime
