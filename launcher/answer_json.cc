#include "launcher/answer_json.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "nlohmann/json.hpp"

namespace brigade::launcher {
namespace {

using Json = nlohmann::ordered_json;

// A peer's text may be anything; broken UTF-8 is replaced, never thrown at.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json list_of(const google::protobuf::RepeatedField<int64_t>& numbers) {
  return Json(std::vector<int64_t>(numbers.begin(), numbers.end()));
}

Json settings_of(const v1::EffectiveSettings& settings) {
  return {{"temperature", settings.temperature()},
          {"top_k", settings.top_k()},
          {"top_p", settings.top_p()},
          {"min_p", settings.min_p()},
          {"repetition_penalty", settings.repetition_penalty()},
          {"presence_penalty", settings.presence_penalty()},
          {"frequency_penalty", settings.frequency_penalty()},
          {"seed", settings.seed()},
          {"max_tokens", settings.max_tokens()},
          {"min_tokens", settings.min_tokens()},
          {"num_sequences", settings.num_sequences()},
          {"reproducible", settings.reproducible()}};
}

Json logprob_of(const v1::TokenLogprob& logprob) {
  Json top = Json::array();
  for (const auto& alternative : logprob.top()) {
    top.push_back({{"id", alternative.id()},
                   {"logprob", alternative.logprob()},
                   {"piece_base64", absl::Base64Escape(alternative.piece())}});
  }
  return {{"logprob", logprob.logprob()}, {"rank", logprob.rank()}, {"top", std::move(top)}};
}

}  // namespace

std::string to_json_line(const v1::Started& started) {
  return line_of({{"event", "started"},
                  {"request_id", started.request_id()},
                  {"prompt_tokens", started.prompt_tokens()},
                  {"settings", settings_of(started.settings())}});
}

std::string to_json_line(const v1::Token& token) {
  Json json = {{"event", "token"},
               {"sample_index", token.sample_index()},
               {"id", token.id()},
               {"text", token.text()},
               {"piece_base64", absl::Base64Escape(token.piece())}};
  if (token.has_logprob()) json["logprob"] = logprob_of(token.logprob());
  return line_of(json);
}

std::string to_json_line(const v1::Finished& finished) {
  Json json = {{"event", "finished"},
               {"sample_index", finished.sample_index()},
               {"reason", finished.reason() == v1::FINISH_REASON_STOP ? "stop" : "length"},
               {"text", finished.text()}};
  if (!finished.stop_string().empty()) json["stop_string"] = finished.stop_string();
  if (finished.has_stop_token_id()) json["stop_token_id"] = finished.stop_token_id();
  json["usage"] = {{"prompt_tokens", finished.usage().prompt_tokens()},
                   {"cached_prompt_tokens", finished.usage().cached_prompt_tokens()},
                   {"completion_tokens", finished.usage().completion_tokens()},
                   {"preemptions", finished.usage().preemptions()},
                   {"target_passes", finished.usage().target_passes()},
                   {"drafted_tokens", finished.usage().drafted_tokens()},
                   {"accepted_drafts", finished.usage().accepted_drafts()},
                   {"drafted_by_position", list_of(finished.usage().drafted_by_position())},
                   {"accepted_by_position", list_of(finished.usage().accepted_by_position())},
                   {"run_ahead_drafts", finished.usage().run_ahead_drafts()},
                   {"early_drafts", finished.usage().early_drafts()},
                   {"draft_wait", finished.usage().draft_wait()}};
  json["timing"] = {{"queued", finished.timing().queued()},
                    {"first_token", finished.timing().first_token()},
                    {"total", finished.timing().total()}};
  json["settings"] = settings_of(finished.settings());
  return line_of(json);
}

std::string retry_json_line(const absl::Status& why, absl::Duration delay) {
  return line_of({{"event", "retry"},
                  {"code", std::string(absl::StatusCodeToString(why.code()))},
                  {"message", std::string(why.message())},
                  {"delay", absl::ToDoubleSeconds(delay)}});
}

std::string error_json_line(const absl::Status& status) {
  return line_of({{"event", "error"},
                  {"code", std::string(absl::StatusCodeToString(status.code()))},
                  {"message", std::string(status.message())}});
}

}  // namespace brigade::launcher
