#include "runtime/draft_worker/draft_sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime::draft_worker {
namespace {

void keep_known(int vocab, std::vector<int32_t>* tokens) {
  std::erase_if(*tokens, [&](int32_t token) { return token < 0 || token >= vocab; });
}

absl::Status check_wanted(int wanted) {
  if (wanted >= 0 && wanted <= DraftBounds::kMaxWanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("wanted is ", wanted, ", must be from 0 to ", DraftBounds::kMaxWanted));
}

absl::Status check_ids(std::span<const int32_t> tokens, int vocab) {
  for (const int32_t token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tokens: ", token, " is not an id of the drafter's vocabulary of ", vocab));
  }
  return absl::OkStatus();
}

// Room for everything that the coordinator may yet commit and for the guesses behind it.
int max_positions(const OpenDraft& open, const SequenceLimits& limits) {
  return std::min(std::max(open.max_length, static_cast<int>(open.tokens.size())),
                  limits.max_context);
}

}  // namespace

absl::Status check_open(const SequenceLimits& limits, OpenDraft* open) {
  const auto length = static_cast<int64_t>(open->tokens.size());
  if (length < 1 || length >= limits.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokens: a text of ", length, " tokens, the drafter's context is ", limits.max_context));
  }
  if (open->prompt_length < 1 || open->prompt_length > length) {
    return absl::InvalidArgumentError(absl::StrCat("prompt_length is ", open->prompt_length,
                                                   ", the text has ", length, " tokens"));
  }
  RETURN_IF_ERROR(check_ids(open->tokens, limits.vocab));
  RETURN_IF_ERROR(check_wanted(open->wanted));
  const int law_entries = open->rule == AcceptRule::kRejection ? 1 : 0;
  if (open->law_entries < law_entries || open->law_entries > DraftBounds::kMaxLawEntries) {
    return absl::InvalidArgumentError(absl::StrCat("law_entries is ", open->law_entries,
                                                   ", must be from ", law_entries, " to ",
                                                   DraftBounds::kMaxLawEntries));
  }
  SamplingParams& sampling = open->sampling;
  const bool limited = !sampling.allowed_tokens.empty();
  keep_known(limits.vocab, &sampling.allowed_tokens);
  if (limited && sampling.allowed_tokens.empty()) {
    return absl::InvalidArgumentError("allowed_tokens: the drafter knows none of them");
  }
  keep_known(limits.vocab, &sampling.banned_tokens);
  keep_known(limits.vocab, &open->end_tokens);
  std::erase_if(sampling.logit_bias, [&](const std::pair<int32_t, float>& entry) {
    return entry.first < 0 || entry.first >= limits.vocab;
  });
  // The rules of a request are those of a client's.
  const GenerateRequest request{.prompt = {0}, .sampling = sampling, .max_tokens = 1};
  return validate(request, {.vocab_size = limits.vocab,
                            .max_context = limits.max_context,
                            .max_list_entries = DraftBounds::kMaxListEntries});
}

DraftSequence::DraftSequence(OpenDraft open, const SequenceLimits& limits, uint64_t touched)
    : limits_(limits),
      open_(std::move(open)),
      mirror_(open_.tokens, max_positions(open_, limits), DraftBounds::kMaxWanted),
      wanted_(open_.wanted),
      end_at_(max_positions(open_, limits)),
      touched_(touched) {
  if (!counts_needed()) return;
  const auto prompt = static_cast<size_t>(open_.prompt_length);
  counts_ = TokenCounts(std::span(open_.tokens).first(prompt));
  counts_.reserve_outputs(std::max(end_at_ - open_.prompt_length, 0));
  for (const int32_t token : std::span(open_.tokens).subspan(prompt)) counts_.add_output(token);
}

RandomKey DraftSequence::key() const {
  return {.seed = open_.sampling.seed, .sample_index = static_cast<uint32_t>(open_.sample_index)};
}

bool DraftSequence::counts_needed() const {
  const SamplingParams& params = open_.sampling;
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

bool DraftSequence::ends(int32_t token) const {
  const std::vector<int32_t>& ends = open_.end_tokens;
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

bool DraftSequence::wants_draft() const {
  return ended_length_ == 0 && mirror_.guesses() < wanted_ && length() < end_at_ &&
         mirror_.room() > 0;
}

PolicyInput DraftSequence::policy_input() const {
  PolicyInput input{.params = &open_.sampling};
  if (counts_needed()) input.counts = &counts_;
  if (length() - open_.prompt_length < open_.min_tokens) input.forbidden_now = open_.end_tokens;
  return input;
}

void DraftSequence::add_guess(int32_t token) {
  mirror_.add_guess(token);
  if (counts_needed()) counts_.add_output(token);
  if (ends(token)) ended_length_ = length();
}

absl::StatusOr<int> DraftSequence::commit(const CommitDraft& commit, uint64_t touched) {
  RETURN_IF_ERROR(check_ids(commit.tokens, limits_.vocab));
  RETURN_IF_ERROR(check_wanted(commit.wanted));
  const int committed = mirror_.committed_length();
  const int before = length();
  if (counts_needed()) {
    const auto guesses = text().subspan(static_cast<size_t>(committed));
    guesses_.assign(guesses.begin(), guesses.end());
  }
  DraftMirror::Commit result;
  RETURN_IF_ERROR(mirror_.commit(commit.base_length, commit.tokens, &result));
  computed = std::min(computed, result.kept);
  // Undone, or committed: the coordinator knows whether it ends there.
  const bool still_guessed =
      ended_length_ <= result.kept && ended_length_ > mirror_.committed_length();
  if (!still_guessed) ended_length_ = 0;
  if (counts_needed()) {
    for (size_t i = static_cast<size_t>(result.kept - committed); i < guesses_.size(); ++i) {
      counts_.remove_output(guesses_[i]);
    }
    for (int i = result.kept; i < length(); ++i) {
      counts_.add_output(text()[static_cast<size_t>(i)]);
    }
  }
  wanted_ = commit.wanted;
  touched_ = touched;
  return before - std::min(before, result.kept);
}

}  // namespace brigade::runtime::draft_worker
