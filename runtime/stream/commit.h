// commit_token(): the one place where a token becomes part of a sequence. EOS, stop ids, stop strings
// with hold-back, max and min tokens, log-probabilities, usage and streaming text for one token;
// accepted drafts pass through it one at a time. Called by the step thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/request/request.h"
#include "runtime/sampling/policy.h"
#include "runtime/stream/stop_matcher.h"
#include "runtime/stream/token_stream.h"
#include "runtime/tokenizer/detokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {

// What one sequence has produced so far. Owned by the sequence.
class SequenceOutput {
 public:
  // `request` and `tokenizer` must outlive this; `tokenizer` may be null (no text is made; stop
  // strings must be empty). generated_so_far is taken in without events.
  SequenceOutput(const GenerateRequest& request, int sample_index,
                 std::span<const int32_t> eos_tokens, const Tokenizer* tokenizer);

  // Tokens committed so far, generated_so_far included.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const TokenCounts& counts() const { return counts_; }
  bool finished() const { return finish_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_; }

  // EOS and stop ids, which the policy must forbid while fewer than min_tokens are committed.
  std::span<const int32_t> forbidden_now() const;

  // Commits `token`. Not after the end. The event carries it; with a finish it also carries the rest of the text. A stop
  // or EOS id is committed and counted but makes no text.
  TokenEvent commit_token(int32_t token, std::optional<TokenLogprob> logprob);

  // Ends the sequence from outside (cancelled, error, deadline): an event with what text was held back.
  TokenEvent finish(FinishReason reason, absl::Status error);

 private:
  bool below_minimum() const { return static_cast<int>(tokens_.size()) < request_.min_tokens; }
  void take(int32_t token);
  void add_text(std::string_view text, TokenEvent* event);
  void end(FinishReason reason, TokenEvent* event);

  const GenerateRequest& request_;
  const int sample_index_;
  const Tokenizer* tokenizer_;
  const bool counts_needed_;
  std::vector<int32_t> ending_ids_;  // EOS (unless ignored) and stop ids
  std::vector<int32_t> tokens_;
  TokenCounts counts_;
  std::optional<IncrementalDetokenizer> detokenizer_;
  StopMatcher stop_matcher_;
  FinishReason finish_ = FinishReason::kNone;
};

}  // namespace brigade::runtime
