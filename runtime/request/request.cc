#include "runtime/request/request.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

absl::Status bad(const std::string& field, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
}

absl::Status check_range(const std::string& field, double value, double low, double high) {
  // Written so that NaN fails.
  if (value >= low && value <= high) return absl::OkStatus();
  return bad(field, absl::StrCat("is ", value, ", must be from ", low, " to ", high));
}

absl::Status check_token(const std::string& field, int64_t token, int vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return bad(field, absl::StrCat("is ", token, ", must be a token id from 0 to ", vocab_size - 1));
}

absl::Status check_tokens(const std::string& field, const std::vector<int32_t>& tokens,
                          const RequestLimits& limits) {
  if (tokens.size() > static_cast<size_t>(limits.max_list_entries)) {
    return bad(field, absl::StrCat("has ", tokens.size(), " entries, limit is ",
                                   limits.max_list_entries));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    RETURN_IF_ERROR(check_token(absl::StrCat(field, "[", i, "]"), tokens[i], limits.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status check_sampling(const SamplingParams& sampling, const RequestLimits& limits) {
  if (sampling.temperature != 0) {
    RETURN_IF_ERROR(check_range("sampling.temperature (0 means greedy)", sampling.temperature, 0.01, 100));
  }
  if (sampling.top_k < 0) {
    return bad("sampling.top_k", absl::StrCat("is ", sampling.top_k, ", must be 0 (off) or more"));
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return bad("sampling.top_p", absl::StrCat("is ", sampling.top_p, ", must be above 0 and at most 1"));
  }
  RETURN_IF_ERROR(check_range("sampling.min_p", sampling.min_p, 0, 1));
  RETURN_IF_ERROR(check_range("sampling.repetition_penalty", sampling.repetition_penalty, 0.01, 100));
  RETURN_IF_ERROR(check_range("sampling.presence_penalty", sampling.presence_penalty, -100, 100));
  RETURN_IF_ERROR(check_range("sampling.frequency_penalty", sampling.frequency_penalty, -100, 100));
  if (sampling.logit_bias.size() > static_cast<size_t>(limits.max_list_entries)) {
    return bad("sampling.logit_bias", absl::StrCat("has ", sampling.logit_bias.size(),
                                                   " entries, limit is ", limits.max_list_entries));
  }
  for (size_t i = 0; i < sampling.logit_bias.size(); ++i) {
    const auto& [token, value] = sampling.logit_bias[i];
    const std::string field = absl::StrCat("sampling.logit_bias[", i, "]");
    RETURN_IF_ERROR(check_token(field + ".token", token, limits.vocab_size));
    RETURN_IF_ERROR(check_range(field + ".bias", value, -1000, 1000));
  }
  RETURN_IF_ERROR(check_tokens("sampling.allowed_tokens", sampling.allowed_tokens, limits));
  RETURN_IF_ERROR(check_tokens("sampling.banned_tokens", sampling.banned_tokens, limits));
  if (sampling.logprobs < -1 || sampling.logprobs > limits.max_logprobs) {
    return bad("sampling.logprobs", absl::StrCat("is ", sampling.logprobs, ", must be from 0 to ",
                                                 limits.max_logprobs));
  }
  return absl::OkStatus();
}

absl::Status check_stop(const StopParams& stop, const RequestLimits& limits) {
  if (stop.strings.size() > static_cast<size_t>(limits.max_stop_strings)) {
    return bad("stop.strings", absl::StrCat("has ", stop.strings.size(), " entries, limit is ",
                                            limits.max_stop_strings));
  }
  for (size_t i = 0; i < stop.strings.size(); ++i) {
    const size_t bytes = stop.strings[i].size();
    if (bytes == 0 || bytes > static_cast<size_t>(limits.max_stop_string_bytes)) {
      return bad(absl::StrCat("stop.strings[", i, "]"),
                 absl::StrCat("has ", bytes, " bytes, must have 1 to ", limits.max_stop_string_bytes));
    }
  }
  return check_tokens("stop.token_ids", stop.token_ids, limits);
}

absl::Status check_speculation(const SpeculationParams& speculation, const RequestLimits& limits) {
  const bool fixed = speculation.mode == SpeculationMode::kFixed;
  if (!fixed || (speculation.depth >= 1 && speculation.depth <= limits.max_draft_depth)) {
    return absl::OkStatus();
  }
  return bad("speculation.depth", absl::StrCat("is ", speculation.depth, ", must be from 1 to ",
                                               limits.max_draft_depth));
}

absl::Status check_lengths(const GenerateRequest& request, const RequestLimits& limits) {
  if (request.prompt.empty()) return bad("prompt", "is empty, must have at least one token");
  if (request.prompt.size() >= static_cast<size_t>(limits.max_context)) {
    return bad("prompt", absl::StrCat("has ", request.prompt.size(),
                                      " tokens, the model's context is ", limits.max_context));
  }
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    RETURN_IF_ERROR(check_token(absl::StrCat("prompt.token_ids[", i, "]"), request.prompt[i],
                                limits.vocab_size));
  }
  const int room = limits.max_context - static_cast<int>(request.prompt.size());
  if (request.max_tokens < 1 || request.max_tokens > room) {
    return bad("max_tokens", absl::StrCat("is ", request.max_tokens, ", must be from 1 to ", room,
                                          " (context ", limits.max_context, " less the prompt's ",
                                          request.prompt.size(), ")"));
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return bad("min_tokens", absl::StrCat("is ", request.min_tokens, ", must be from 0 to max_tokens (",
                                          request.max_tokens, ")"));
  }
  if (request.num_sequences < 1 || request.num_sequences > limits.max_sequences) {
    return bad("num_sequences", absl::StrCat("is ", request.num_sequences, ", must be from 1 to ",
                                             limits.max_sequences));
  }
  return absl::OkStatus();
}

absl::Status check_resumption(const GenerateRequest& request, const RequestLimits& limits) {
  if (request.generated_so_far.empty()) return absl::OkStatus();
  if (request.num_sequences != 1) {
    return bad("generated_so_far", "is only possible with num_sequences = 1");
  }
  if (request.generated_so_far.size() >= static_cast<size_t>(request.max_tokens)) {
    return bad("generated_so_far", absl::StrCat("has ", request.generated_so_far.size(),
                                                " tokens, must have fewer than max_tokens (",
                                                request.max_tokens, ")"));
  }
  for (size_t i = 0; i < request.generated_so_far.size(); ++i) {
    RETURN_IF_ERROR(check_token(absl::StrCat("generated_so_far[", i, "]"),
                                request.generated_so_far[i], limits.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status validate(const GenerateRequest& request, const RequestLimits& limits) {
  RETURN_IF_ERROR(check_lengths(request, limits));
  RETURN_IF_ERROR(check_sampling(request.sampling, limits));
  RETURN_IF_ERROR(check_stop(request.stop, limits));
  RETURN_IF_ERROR(check_speculation(request.speculation, limits));
  return check_resumption(request, limits);
}

}  // namespace brigade::runtime
