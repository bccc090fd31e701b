#include "runtime/api/request_from_proto.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/repeated_field.h"
#include "kernels/core/status.h"
#include "runtime/sampling/random.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxCacheSaltBytes = 256;

absl::Status out_of_range(const std::string& field, const std::string& value,
                          const std::string& bound) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is not ", bound));
}

// Integers that fit an int; the field's own bounds are checked with the whole request.
absl::Status narrow(int64_t value, const std::string& field, int* out) {
  if (value < std::numeric_limits<int>::min() || value > std::numeric_limits<int>::max()) {
    return out_of_range(field, absl::StrCat(value), "a 32-bit number");
  }
  *out = static_cast<int>(value);
  return absl::OkStatus();
}

absl::Status take_token(int64_t id, int vocab, const std::string& field, int32_t* out) {
  if (id < 0 || id >= vocab) {
    return out_of_range(field, absl::StrCat(id),
                        absl::StrCat("a token id of this model (0 to ", vocab - 1, ")"));
  }
  *out = static_cast<int32_t>(id);
  return absl::OkStatus();
}

absl::Status take_tokens(const google::protobuf::RepeatedField<int64_t>& ids, int vocab,
                         const std::string& field, int max_entries, std::vector<int32_t>* out) {
  if (ids.size() > max_entries) {
    return out_of_range(field, absl::StrCat(ids.size(), " entries"),
                        absl::StrCat("at most ", max_entries));
  }
  out->resize(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    RETURN_IF_ERROR(take_token(ids[i], vocab, absl::StrCat(field, "[", i, "]"), &(*out)[i]));
  }
  return absl::OkStatus();
}

absl::Status take_number(double value, const std::string& field, double* out) {
  if (!std::isfinite(value)) return out_of_range(field, absl::StrCat(value), "a finite number");
  *out = value;
  return absl::OkStatus();
}

absl::Status take_logit_bias(const v1::Sampling& message, const RequestLimits& limits,
                             SamplingParams* params) {
  if (message.logit_bias_size() > limits.max_list_entries) {
    return out_of_range("sampling.logit_bias", absl::StrCat(message.logit_bias_size(), " entries"),
                        absl::StrCat("at most ", limits.max_list_entries));
  }
  for (int i = 0; i < message.logit_bias_size(); ++i) {
    const std::string field = absl::StrCat("sampling.logit_bias[", i, "]");
    int32_t token = 0;
    double bias = 0;
    RETURN_IF_ERROR(take_token(message.logit_bias(i).token_id(), limits.vocab_size,
                               field + ".token_id", &token));
    RETURN_IF_ERROR(take_number(message.logit_bias(i).bias(), field + ".bias", &bias));
    if (std::abs(bias) > std::numeric_limits<float>::max()) {
      return out_of_range(field + ".bias", absl::StrCat(bias), "within the range of a float");
    }
    params->logit_bias.emplace_back(token, static_cast<float>(bias));
  }
  return absl::OkStatus();
}

absl::Status take_sampling(const v1::Sampling& message, const ServedModel& model,
                           SamplingParams* params) {
  params->temperature = model.default_temperature.value_or(0);
  params->top_k = model.default_top_k.value_or(0);
  params->top_p = model.default_top_p.value_or(1);
  const struct {
    bool present;
    double value;
    const char* field;
    double* out;
  } numbers[] = {
      {message.has_temperature(), message.temperature(), "temperature", &params->temperature},
      {message.has_top_p(), message.top_p(), "top_p", &params->top_p},
      {message.has_min_p(), message.min_p(), "min_p", &params->min_p},
      {message.has_repetition_penalty(), message.repetition_penalty(), "repetition_penalty",
       &params->repetition_penalty},
      {message.has_presence_penalty(), message.presence_penalty(), "presence_penalty",
       &params->presence_penalty},
      {message.has_frequency_penalty(), message.frequency_penalty(), "frequency_penalty",
       &params->frequency_penalty},
  };
  for (const auto& number : numbers) {
    if (!number.present) continue;
    RETURN_IF_ERROR(take_number(number.value, absl::StrCat("sampling.", number.field), number.out));
  }
  if (message.has_top_k())
    RETURN_IF_ERROR(narrow(message.top_k(), "sampling.top_k", &params->top_k));
  if (message.has_logprobs()) {
    RETURN_IF_ERROR(narrow(message.logprobs(), "sampling.logprobs", &params->logprobs));
    if (params->logprobs < 0) {
      return out_of_range("sampling.logprobs", absl::StrCat(params->logprobs), "0 or more");
    }
  }
  params->seed_from_client = message.has_seed();
  params->seed = message.has_seed() ? message.seed() : random_seed();
  RETURN_IF_ERROR(take_logit_bias(message, model.limits, params));
  RETURN_IF_ERROR(take_tokens(message.allowed_tokens(), model.limits.vocab_size,
                              "sampling.allowed_tokens", model.limits.max_list_entries,
                              &params->allowed_tokens));
  return take_tokens(message.banned_tokens(), model.limits.vocab_size, "sampling.banned_tokens",
                     model.limits.max_list_entries, &params->banned_tokens);
}

absl::Status take_stop(const v1::Stop& message, const RequestLimits& limits, StopParams* stop) {
  if (message.strings_size() > limits.max_stop_strings) {
    return out_of_range("stop.strings", absl::StrCat(message.strings_size(), " entries"),
                        absl::StrCat("at most ", limits.max_stop_strings));
  }
  stop->strings.assign(message.strings().begin(), message.strings().end());
  stop->ignore_eos = message.ignore_eos();
  stop->include_stop = message.include_stop();
  return take_tokens(message.token_ids(), limits.vocab_size, "stop.token_ids",
                     limits.max_list_entries, &stop->token_ids);
}

absl::Status take_prompt(const v1::GenerateRequest& message, const ServedModel& model,
                         std::vector<int32_t>* prompt) {
  switch (message.prompt_case()) {
    case v1::GenerateRequest::kTokenIds:
      if (message.has_add_special_tokens() || message.parse_control_tokens()) {
        return absl::InvalidArgumentError(
            "add_special_tokens and parse_control_tokens go with text, not with token_ids");
      }
      if (message.token_ids().ids().empty()) {
        return absl::InvalidArgumentError("token_ids.ids: empty; a prompt has at least one token");
      }
      return take_tokens(message.token_ids().ids(), model.limits.vocab_size, "token_ids.ids",
                         model.limits.max_context, prompt);
    case v1::GenerateRequest::kText: {
      if (!model.encode) {
        return absl::InvalidArgumentError(
            "text: this model was loaded without a tokenizer; send token_ids");
      }
      const bool add_special = !message.has_add_special_tokens() || message.add_special_tokens();
      auto encoded = model.encode(message.text(), add_special, message.parse_control_tokens());
      if (!encoded.ok()) {
        return absl::Status(encoded.status().code(),
                            absl::StrCat("text: ", encoded.status().message()));
      }
      *prompt = *std::move(encoded);
      if (prompt->empty()) {
        return absl::InvalidArgumentError("text: gives no tokens; a prompt has at least one");
      }
      return absl::OkStatus();
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("prompt: neither text nor token_ids is set");
}

// The counts that stand beside the prompt; max_tokens needs the prompt's length.
absl::Status take_counts(const v1::GenerateRequest& message, const ServedModel& model,
                         GenerateRequest* request) {
  if (message.has_num_sequences()) {
    RETURN_IF_ERROR(narrow(message.num_sequences(), "num_sequences", &request->num_sequences));
  }
  RETURN_IF_ERROR(narrow(message.min_tokens(), "min_tokens", &request->min_tokens));
  const int room = model.limits.max_context - static_cast<int>(request->prompt.size());
  if (room <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(message.prompt_case() == v1::GenerateRequest::kText ? "text" : "token_ids.ids",
                     ": ", request->prompt.size(), " tokens leave no room in the context of ",
                     model.limits.max_context));
  }
  if (message.has_max_tokens()) {
    return narrow(message.max_tokens(), "max_tokens", &request->max_tokens);
  }
  const int wanted = std::max(model.default_max_tokens, request->min_tokens);
  request->max_tokens = std::min(wanted, room);
  return absl::OkStatus();
}

// An answer that has already ended leaves nothing to go on with.
absl::Status check_unfinished(const GenerateRequest& request, const ServedModel& model) {
  for (size_t i = 0; i < request.generated_so_far.size(); ++i) {
    if (static_cast<int>(i) + 1 <= request.min_tokens) continue;
    const int32_t token = request.generated_so_far[i];
    const auto ends = [token](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    if (ends(request.stop.token_ids) || (!request.stop.ignore_eos && ends(model.eos_tokens))) {
      return absl::InvalidArgumentError(absl::StrCat("generated_so_far[", i, "]: token ", token,
                                                     " has ended the answer already"));
    }
  }
  return absl::OkStatus();
}

absl::Status take_names(const v1::GenerateRequest& message, const ServedModel& model,
                        GenerateRequest* request) {
  if (message.request_id().size() > kMaxRequestIdBytes) {
    return out_of_range("request_id", absl::StrCat(message.request_id().size(), " bytes"),
                        absl::StrCat("at most ", kMaxRequestIdBytes));
  }
  if (message.cache_salt().size() > kMaxCacheSaltBytes) {
    return out_of_range("cache_salt", absl::StrCat(message.cache_salt().size(), " bytes"),
                        absl::StrCat("at most ", kMaxCacheSaltBytes));
  }
  request->id = message.request_id().empty() ? absl::StrCat("r-", absl::Hex(random_seed()))
                                             : message.request_id();
  request->cache_salt = message.cache_salt();
  request->use_prefix_cache =
      model.prefix_cache && (!message.has_use_prefix_cache() || message.use_prefix_cache());
  return absl::OkStatus();
}

absl::Status take_speculation(const v1::Speculation& message, const ServedModel& model,
                              SpeculationParams* speculation) {
  switch (message.mode()) {
    case v1::Speculation::MODE_UNSPECIFIED:
      *speculation = model.default_speculation;
      return absl::OkStatus();
    case v1::Speculation::MODE_OFF:
      speculation->mode = SpeculationMode::kOff;
      return absl::OkStatus();
    case v1::Speculation::MODE_AUTO:
      speculation->mode = SpeculationMode::kAuto;
      return absl::OkStatus();
    case v1::Speculation::MODE_FIXED:
      speculation->mode = SpeculationMode::kFixed;
      if (message.depth() < 1 || message.depth() > model.limits.max_draft_depth) {
        return out_of_range("speculation.depth", absl::StrCat(message.depth()),
                            absl::StrCat("from 1 to ", model.limits.max_draft_depth));
      }
      speculation->depth = static_cast<int>(message.depth());
      return absl::OkStatus();
    default:
      return out_of_range("speculation.mode", absl::StrCat(static_cast<int>(message.mode())),
                          "one of Speculation.Mode");
  }
}

// Rejection keeps the law of an answer, not its draws.
bool reproducible(const GenerateRequest& request) {
  const bool drafts = request.speculation.mode == SpeculationMode::kAuto ||
                      request.speculation.mode == SpeculationMode::kFixed;
  return !drafts || request.sampling.temperature == 0 || request.sampling.seed_from_client;
}

}  // namespace

absl::StatusOr<GenerateRequest> request_from_proto(const v1::GenerateRequest& message,
                                                   const ServedModel& model, absl::Time deadline) {
  GenerateRequest request;
  request.deadline = deadline;
  // Cheap checks first; tokenizing comes after them.
  RETURN_IF_ERROR(take_names(message, model, &request));
  RETURN_IF_ERROR(take_sampling(message.sampling(), model, &request.sampling));
  RETURN_IF_ERROR(take_stop(message.stop(), model.limits, &request.stop));
  RETURN_IF_ERROR(take_speculation(message.speculation(), model, &request.speculation));
  RETURN_IF_ERROR(take_tokens(message.generated_so_far(), model.limits.vocab_size,
                              "generated_so_far", model.limits.max_context,
                              &request.generated_so_far));
  RETURN_IF_ERROR(take_prompt(message, model, &request.prompt));
  RETURN_IF_ERROR(take_counts(message, model, &request));
  RETURN_IF_ERROR(validate(request, model.limits));
  RETURN_IF_ERROR(check_unfinished(request, model));
  return request;
}

v1::EffectiveSettings effective_settings(const GenerateRequest& request) {
  v1::EffectiveSettings settings;
  settings.set_temperature(request.sampling.temperature);
  settings.set_top_k(request.sampling.top_k);
  settings.set_top_p(request.sampling.top_p);
  settings.set_min_p(request.sampling.min_p);
  settings.set_repetition_penalty(request.sampling.repetition_penalty);
  settings.set_presence_penalty(request.sampling.presence_penalty);
  settings.set_frequency_penalty(request.sampling.frequency_penalty);
  settings.set_seed(request.sampling.seed);
  settings.set_max_tokens(request.max_tokens);
  settings.set_min_tokens(request.min_tokens);
  settings.set_num_sequences(request.num_sequences);
  settings.set_reproducible(reproducible(request));
  return settings;
}

}  // namespace brigade::runtime
