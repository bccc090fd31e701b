#include "launcher/bench/workload.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/core/status.h"
#include "nlohmann/json.hpp"

namespace brigade::launcher {
namespace {

constexpr size_t kMaxArrivals = 1 << 20;

absl::Status bad_line(const std::string& file, int line, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(file, ":", line, ": ", problem));
}

// Calls take(line number from 1, text) until it fails or `limit` lines were taken.
absl::Status for_each_line(const std::string& path, size_t limit,
                           const std::function<absl::Status(int, const std::string&)>& take) {
  std::ifstream file(path);
  if (!file) return absl::InvalidArgumentError(absl::StrCat("cannot open ", path));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    RETURN_IF_ERROR(take(number, line));
    if (limit-- <= 1) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> parse_object(const std::string& file, int number,
                                            const std::string& line) {
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad_line(file, number, "not a JSON object");
  return object;
}

absl::StatusOr<std::string> prompt_of(const std::string& file, int number,
                                      const nlohmann::json& object) {
  for (const char* key : {"prompt", "text", "instruction", "turns"}) {
    if (!object.contains(key)) continue;
    const nlohmann::json& value = object[key];
    if (value.is_string()) return value.get<std::string>();
    if (value.is_array() && !value.empty() && value[0].is_string()) {
      return value[0].get<std::string>();
    }
    return bad_line(file, number, absl::StrCat("field ", key, " is no text"));
  }
  return bad_line(file, number, "no field prompt, text, instruction or turns");
}

struct TraceLine {
  double milliseconds = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
};

absl::StatusOr<TraceLine> parse_trace_json(const std::string& file, int number,
                                           const std::string& line) {
  ASSIGN_OR_RETURN(const nlohmann::json object, parse_object(file, number, line));
  for (const char* key : {"timestamp", "input_length", "output_length"}) {
    if (!object.contains(key) || !object[key].is_number()) {
      return bad_line(file, number, absl::StrCat("no number ", key));
    }
  }
  return TraceLine{object["timestamp"].get<double>(), object["input_length"].get<int64_t>(),
                   object["output_length"].get<int64_t>()};
}

// "2023-11-16 18:15:46.6805900,374,44"
absl::StatusOr<TraceLine> parse_trace_csv(const std::string& file, int number,
                                          const std::string& line) {
  const std::vector<std::string> cells = absl::StrSplit(line, ',');
  TraceLine trace;
  absl::Time time;
  std::string error;
  if (cells.size() != 3 || !absl::SimpleAtoi(cells[1], &trace.prompt_tokens) ||
      !absl::SimpleAtoi(cells[2], &trace.output_tokens) ||
      !absl::ParseTime("%Y-%m-%d %H:%M:%E*S", cells[0], &time, &error)) {
    return bad_line(file, number, "expected TIMESTAMP,ContextTokens,GeneratedTokens");
  }
  trace.milliseconds = absl::ToDoubleMilliseconds(time - absl::UnixEpoch());
  return trace;
}

v1::GenerateRequest request_of(const TraceLine& trace, const WorkloadOptions& options,
                               const v1::Model& model, const v1::GenerateRequest& common,
                               uint64_t index) {
  const int64_t context = std::max<int64_t>(model.max_context(), 2);
  int64_t output = std::clamp<int64_t>(trace.output_tokens, 1, context - 1);
  int64_t prompt = std::max<int64_t>(trace.prompt_tokens, 1);
  if (options.max_prompt_tokens > 0) prompt = std::min<int64_t>(prompt, options.max_prompt_tokens);
  if (common.has_max_tokens()) output = std::clamp<int64_t>(output, 1, common.max_tokens());
  // A long pair keeps its answer and loses prompt, but at least half the context stays prompt.
  output = std::min(output, std::max(context - prompt, context / 2));
  prompt = std::min(prompt, context - output);
  v1::GenerateRequest request = common;
  std::mt19937_64 random(index);
  for (int64_t i = 0; i < prompt; ++i) {
    request.mutable_token_ids()->add_ids(
        static_cast<int64_t>(random() % static_cast<uint64_t>(model.vocab_size())));
  }
  request.set_max_tokens(output);
  request.set_min_tokens(0);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

absl::StatusOr<std::vector<Arrival>> read_trace(const WorkloadOptions& options,
                                                const v1::Model& model,
                                                const v1::GenerateRequest& common, size_t limit) {
  const bool json = options.trace_file.ends_with(".jsonl");
  std::vector<Arrival> arrivals;
  double first = 0;
  if (model.vocab_size() < 1) return absl::UnavailableError("the server has no model yet");
  RETURN_IF_ERROR(for_each_line(
      options.trace_file, limit + (json ? 0 : 1),
      [&](int number, const std::string& line) -> absl::Status {
        if (!json && number == 1 && line.starts_with("TIMESTAMP")) return absl::OkStatus();
        ASSIGN_OR_RETURN(const TraceLine trace,
                         json ? parse_trace_json(options.trace_file, number, line)
                              : parse_trace_csv(options.trace_file, number, line));
        if (arrivals.empty()) first = trace.milliseconds;
        arrivals.push_back({absl::Milliseconds(std::max(0.0, trace.milliseconds - first)),
                            request_of(trace, options, model, common, arrivals.size())});
        return absl::OkStatus();
      }));
  return arrivals;
}

absl::StatusOr<std::vector<Arrival>> read_prompts(const WorkloadOptions& options,
                                                  const v1::GenerateRequest& common, size_t limit) {
  const bool json = options.prompts_file.ends_with(".jsonl");
  std::vector<Arrival> arrivals;
  RETURN_IF_ERROR(for_each_line(
      options.prompts_file, limit, [&](int number, const std::string& line) -> absl::Status {
        Arrival arrival{absl::ZeroDuration(), common};
        std::string prompt = line;
        if (json) {
          ASSIGN_OR_RETURN(const nlohmann::json object,
                           parse_object(options.prompts_file, number, line));
          ASSIGN_OR_RETURN(prompt, prompt_of(options.prompts_file, number, object));
        }
        arrival.request.set_text(prompt);
        arrivals.push_back(std::move(arrival));
        return absl::OkStatus();
      }));
  return arrivals;
}

}  // namespace

absl::StatusOr<std::vector<Arrival>> read_workload(const WorkloadOptions& options,
                                                   const v1::Model& model,
                                                   const v1::GenerateRequest& common) {
  const size_t limit =
      options.max_requests > 0 ? static_cast<size_t>(options.max_requests) : kMaxArrivals;
  ASSIGN_OR_RETURN(std::vector<Arrival> arrivals, options.trace_file.empty()
                                                      ? read_prompts(options, common, limit)
                                                      : read_trace(options, model, common, limit));
  if (arrivals.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.prompts_file, options.trace_file, ": holds no requests"));
  }
  return arrivals;
}

}  // namespace brigade::launcher
