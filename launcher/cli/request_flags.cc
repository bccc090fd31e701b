#include "launcher/cli/request_flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::launcher {
namespace {

absl::Status add_bias(const std::string& text, v1::Sampling* sampling) {
  const size_t equals = text.find('=');
  int64_t id = 0;
  double bias = 0;
  if (equals == std::string::npos || !absl::SimpleAtoi(text.substr(0, equals), &id) ||
      !absl::SimpleAtod(text.substr(equals + 1), &bias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--logit-bias ", text, ": expected ID=VALUE, such as 42=-5"));
  }
  v1::LogitBias* entry = sampling->add_logit_bias();
  entry->set_token_id(id);
  entry->set_bias(bias);
  return absl::OkStatus();
}

absl::Status set_speculation(const std::string& text, v1::Speculation* speculation) {
  int64_t depth = 0;
  if (text == "off") {
    speculation->set_mode(v1::Speculation::MODE_OFF);
  } else if (text == "auto") {
    speculation->set_mode(v1::Speculation::MODE_AUTO);
  } else if (absl::SimpleAtoi(text, &depth) && depth > 0) {
    speculation->set_mode(v1::Speculation::MODE_FIXED);
    speculation->set_depth(depth);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--speculation ", text, ": write off, auto or a number of drafts"));
  }
  return absl::OkStatus();
}

// A shell makes "\n" two characters; people mean a newline.
std::string unescape_newlines(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size();
    if (escape && text[i + 1] == 'n') {
      out += '\n';
      ++i;
    } else if (escape && text[i + 1] == 't') {
      out += '\t';
      ++i;
    } else if (escape && text[i + 1] == '\\') {
      out += '\\';
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void add_request_flags(CLI::App& app, RequestFlags* flags) {
  CLI::Option_group* sampling = app.add_option_group("Sampling", "Unset: the server's default");
  sampling->add_option("--temperature,-t", flags->temperature, "0 is greedy");
  sampling->add_option("--top-k", flags->top_k, "Keep the k most likely tokens; 0: all");
  sampling->add_option("--top-p", flags->top_p, "Keep the most likely tokens up to this mass");
  sampling->add_option("--min-p", flags->min_p,
                       "Keep tokens at least so likely as a share of the best");
  sampling->add_option("--repetition-penalty", flags->repetition_penalty, "1: off");
  sampling->add_option("--presence-penalty", flags->presence_penalty, "0: off");
  sampling->add_option("--frequency-penalty", flags->frequency_penalty, "0: off");
  sampling->add_option("--logit-bias", flags->logit_bias, "ID=VALUE, repeatable");
  sampling->add_option("--allow", flags->allowed, "Only these token ids")->delimiter(',');
  sampling->add_option("--ban", flags->banned, "Never these token ids")->delimiter(',');
  sampling->add_option("--seed", flags->seed, "Same seed, same answer; unset: drawn and reported");
  sampling->add_option("--logprobs", flags->logprobs,
                       "Log-probabilities with so many alternatives");
  CLI::Option_group* limits = app.add_option_group("Length and stops");
  limits->add_option("--max-tokens,-m", flags->max_tokens, "Tokens at most, per sequence");
  limits->add_option("--min-tokens", flags->min_tokens, "No end before so many tokens");
  limits->add_option("--stop", flags->stop, "End at this text (\\n is a newline), repeatable");
  limits->add_option("--stop-ids", flags->stop_ids, "End at these token ids")->delimiter(',');
  limits->add_flag("--ignore-eos", flags->ignore_eos, "Go on past the end token");
  limits->add_flag("--include-stop", flags->include_stop, "Keep the stop text in the answer");
  CLI::Option_group* other = app.add_option_group("Request");
  other->add_option("--num-sequences,-n", flags->num_sequences, "Independent answers");
  other->add_flag("--no-special-tokens", flags->no_special_tokens, "Add no begin token");
  other->add_flag("--parse-control-tokens", flags->parse_control_tokens,
                  "Let text such as </s> become control tokens");
  other->add_flag("--no-prefix-cache", flags->no_prefix_cache, "Use no cached prefix");
  other->add_option("--speculation", flags->speculation,
                    "Verify drafts beside each token: off, auto, or so many a pass");
  other->add_option("--cache-salt", flags->cache_salt, "Share cached prefixes only with this salt");
  other->add_option("--request-id", flags->request_id, "Name in the server's logs");
}

absl::Status fill_request(const RequestFlags& flags, v1::GenerateRequest* request) {
  v1::Sampling* sampling = request->mutable_sampling();
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling->set_seed(*flags.seed);
  if (flags.logprobs) sampling->set_logprobs(*flags.logprobs);
  for (const std::string& bias : flags.logit_bias) RETURN_IF_ERROR(add_bias(bias, sampling));
  sampling->mutable_allowed_tokens()->Add(flags.allowed.begin(), flags.allowed.end());
  sampling->mutable_banned_tokens()->Add(flags.banned.begin(), flags.banned.end());
  v1::Stop* stop = request->mutable_stop();
  for (const std::string& text : flags.stop) stop->add_strings(unescape_newlines(text));
  stop->mutable_token_ids()->Add(flags.stop_ids.begin(), flags.stop_ids.end());
  stop->set_ignore_eos(flags.ignore_eos);
  stop->set_include_stop(flags.include_stop);
  if (flags.max_tokens) request->set_max_tokens(*flags.max_tokens);
  request->set_min_tokens(flags.min_tokens);
  if (flags.num_sequences) request->set_num_sequences(*flags.num_sequences);
  if (flags.no_special_tokens) request->set_add_special_tokens(false);
  request->set_parse_control_tokens(flags.parse_control_tokens);
  if (flags.no_prefix_cache) request->set_use_prefix_cache(false);
  if (!flags.speculation.empty()) {
    RETURN_IF_ERROR(set_speculation(flags.speculation, request->mutable_speculation()));
  }
  request->set_cache_salt(flags.cache_salt);
  request->set_request_id(flags.request_id);
  return absl::OkStatus();
}

}  // namespace brigade::launcher
