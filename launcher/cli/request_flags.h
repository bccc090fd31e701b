// The flags that describe a request: sampling, stops, limits. Shared by generate and bench.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "brigade/v1/generation.pb.h"

namespace CLI {
class App;
}

namespace brigade::launcher {

// Unset: the server's default.
struct RequestFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<double> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int64_t> top_k, logprobs, max_tokens, num_sequences;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::vector<int64_t> allowed, banned, stop_ids;
  std::vector<std::string> stop;
  int64_t min_tokens = 0;
  bool ignore_eos = false, include_stop = false;
  bool no_special_tokens = false, parse_control_tokens = false, no_prefix_cache = false;
  std::string cache_salt, request_id;
  std::string speculation;  // off, auto, or a number
};

void add_request_flags(CLI::App& app, RequestFlags* flags);

// INVALID_ARGUMENT names the flag. Leaves the prompt alone.
absl::Status fill_request(const RequestFlags& flags, v1::GenerateRequest* request);

}  // namespace brigade::launcher
