#include "runtime/stream/commit.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace brigade::runtime {
namespace {

bool uses_counts(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
         sampling.frequency_penalty != 0;
}

std::vector<int32_t> ids_that_end(const GenerateRequest& request, std::span<const int32_t> eos_tokens) {
  std::vector<int32_t> ids = request.stop.token_ids;
  if (!request.stop.ignore_eos) ids.insert(ids.end(), eos_tokens.begin(), eos_tokens.end());
  return ids;
}

}  // namespace

SequenceOutput::SequenceOutput(const GenerateRequest& request, int sample_index,
                               std::span<const int32_t> eos_tokens, const Tokenizer* tokenizer)
    : request_(request),
      sample_index_(sample_index),
      tokenizer_(tokenizer),
      counts_needed_(uses_counts(request.sampling)),
      ending_ids_(ids_that_end(request, eos_tokens)),
      counts_(counts_needed_ ? std::span<const int32_t>(request.prompt) : std::span<const int32_t>()),
      stop_matcher_(request.stop.strings) {
  if (tokenizer_ != nullptr) detokenizer_.emplace(*tokenizer_, DecodeOptions{.starts_text = false});
  tokens_.reserve(request.max_tokens);
  if (counts_needed_) counts_.reserve_outputs(request.max_tokens);
  // The text of earlier tokens was shown by the earlier answer; what that answer held back (half a
  // character, half a stop string) comes out with the next tokens. A stop string inside it cannot
  // exist: the earlier answer would have ended there.
  TokenEvent already_shown;
  for (const int32_t token : request.generated_so_far) {
    take(token);
    if (detokenizer_) add_text(detokenizer_->push(token), &already_shown);
  }
}

void SequenceOutput::take(int32_t token) {
  tokens_.push_back(token);
  if (counts_needed_) counts_.add_output(token);
}

std::span<const int32_t> SequenceOutput::forbidden_now() const {
  if (!below_minimum()) return {};
  return ending_ids_;
}

// Shows what cannot become part of a stop string any more. A match sets stop_match.
void SequenceOutput::add_text(std::string_view text, TokenEvent* event) {
  event->text += stop_matcher_.append(text, !below_minimum());
  if (stop_matcher_.matched().empty()) return;
  event->stop_match = stop_matcher_.matched();
  if (request_.stop.include_stop) event->text += stop_matcher_.matched();
}

void SequenceOutput::end(FinishReason reason, TokenEvent* event) {
  // The detokenizer's rest (an incomplete character) may still complete a stop string; the matcher's
  // rest is then text.
  if (event->stop_match.empty()) {
    if (detokenizer_) add_text(detokenizer_->flush(), event);
    if (event->stop_match.empty()) {
      event->text += stop_matcher_.flush();
    } else if (reason == FinishReason::kLength) {
      reason = FinishReason::kStop;
    }
  }
  finish_ = reason;
  event->finish = reason;
  event->usage.prompt_tokens = static_cast<int>(request_.prompt.size());
  event->usage.completion_tokens = static_cast<int>(tokens_.size());
}

TokenEvent SequenceOutput::commit_token(int32_t token, std::optional<TokenLogprob> logprob) {
  CHECK(!finished());
  TokenEvent event;
  event.sample_index = sample_index_;
  event.token = token;
  event.logprob = std::move(logprob);
  const bool ends_here = !below_minimum() && std::find(ending_ids_.begin(), ending_ids_.end(),
                                                       token) != ending_ids_.end();
  take(token);
  if (tokenizer_ != nullptr) event.piece = tokenizer_->token_bytes(token);
  if (ends_here) {
    event.stop_token = token;
    end(FinishReason::kStop, &event);
    return event;
  }
  if (detokenizer_) add_text(detokenizer_->push(token), &event);
  if (!event.stop_match.empty()) {
    end(FinishReason::kStop, &event);
  } else if (static_cast<int>(tokens_.size()) >= request_.max_tokens) {
    end(FinishReason::kLength, &event);
  }
  return event;
}

TokenEvent SequenceOutput::finish(FinishReason reason, absl::Status error) {
  CHECK(!finished());
  TokenEvent event;
  event.sample_index = sample_index_;
  event.error = std::move(error);
  end(reason, &event);
  return event;
}

}  // namespace brigade::runtime
