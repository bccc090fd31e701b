#include "launcher/supervisor/control_messages.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace brigade::launcher {
namespace {

using Json = nlohmann::json;

Json to_json_value(const ProcessReport& report) {
  Json json = {{"name", report.name},     {"role", report.role},
               {"host", report.host},     {"state", report.state},
               {"pid", report.pid},       {"restarts", report.restarts},
               {"starts", report.starts}, {"uptime_seconds", report.uptime_seconds},
               {"ready", report.ready},   {"detail", report.detail}};
  return json;
}

ProcessReport to_report(const Json& json) {
  ProcessReport report;
  report.name = json.at("name").get<std::string>();
  report.role = json.at("role").get<std::string>();
  report.host = json.at("host").get<std::string>();
  report.state = json.at("state").get<std::string>();
  report.pid = json.at("pid").get<int64_t>();
  report.restarts = json.at("restarts").get<int64_t>();
  report.starts = json.at("starts").get<int64_t>();
  report.uptime_seconds = json.at("uptime_seconds").get<double>();
  report.ready = json.at("ready").get<bool>();
  report.detail = json.at("detail").get<std::string>();
  return report;
}

Json body_of(const ControlAnswer& answer) {
  Json processes = Json::array();
  for (const ProcessReport& report : answer.processes) processes.push_back(to_json_value(report));
  return {{"api", answer.api}, {"processes", std::move(processes)}};
}

// Sentences may hold what a process printed; invalid UTF-8 is replaced.
std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

absl::Status malformed(const char* what, const std::string& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("malformed ", what, " on the control socket: ", why));
}

}  // namespace

std::string to_line(const ControlRequest& request) {
  return dump({{"verb", request.verb}, {"process", request.process}}, -1) + "\n";
}

std::string to_line(const ControlAnswer& answer) {
  Json json = body_of(answer);
  json["stop_limit_seconds"] = answer.stop_limit_seconds;
  json["code"] = static_cast<int>(answer.status.code());
  json["error"] = std::string(answer.status.message());
  return dump(json, -1) + "\n";
}

absl::StatusOr<ControlRequest> parse_request(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    return ControlRequest{json.at("verb").get<std::string>(),
                          json.at("process").get<std::string>()};
  } catch (const Json::exception& error) {
    return malformed("request", error.what());
  }
}

absl::StatusOr<ControlAnswer> parse_answer(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    ControlAnswer answer;
    answer.status = absl::Status(static_cast<absl::StatusCode>(json.at("code").get<int>()),
                                 json.at("error").get<std::string>());
    answer.api = json.at("api").get<std::string>();
    answer.stop_limit_seconds = json.at("stop_limit_seconds").get<double>();
    for (const Json& process : json.at("processes")) answer.processes.push_back(to_report(process));
    return answer;
  } catch (const Json::exception& error) {
    return malformed("answer", error.what());
  }
}

std::string to_json(const ControlAnswer& answer) { return dump(body_of(answer), 2); }

}  // namespace brigade::launcher
