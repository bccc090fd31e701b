// What a client asked for, after tokenizing and checking. A request is one prompt with
// num_sequences sequences; every later stage reads it and never changes it. Plain data, no thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace brigade::runtime {

struct SamplingParams {
  double temperature = 0;  // 0: greedy
  int top_k = 0;           // 0: off
  double top_p = 1;        // includes the token that crosses
  double min_p = 0;        // relative to the most likely token
  double repetition_penalty = 1;  // prompt and output (CTRL paper rule: divide positive, multiply negative)
  double presence_penalty = 0;    // output only, subtracted once per seen token
  double frequency_penalty = 0;   // output only, subtracted per occurrence
  std::vector<std::pair<int32_t, float>> logit_bias;  // token id, added value
  std::vector<int32_t> allowed_tokens;                // empty: all
  std::vector<int32_t> banned_tokens;
  uint64_t seed = 0;
  bool seed_from_client = false;
  int logprobs = -1;  // -1: none; n >= 0: the chosen token's and the n most likely ones'
};

struct StopParams {
  std::vector<std::string> strings;
  std::vector<int32_t> token_ids;
  bool ignore_eos = false;
  bool include_stop = false;  // the matched stop string stays in the text
};

// Whether drafts are verified, and how many in one pass. Never part of what is answered.
enum class SpeculationMode { kServerDefault, kOff, kAuto, kFixed };
struct SpeculationParams {
  SpeculationMode mode = SpeculationMode::kServerDefault;
  int depth = 0;  // with kFixed
};

struct GenerateRequest {
  std::string id;               // shown in logs and errors; made by the server when empty
  std::vector<int32_t> prompt;
  int num_sequences = 1;
  SamplingParams sampling;
  StopParams stop;
  int max_tokens = 0;           // per sequence, tokens of generated_so_far included
  int min_tokens = 0;
  // Tokens that an earlier, broken answer already delivered: positions, penalties, limits and
  // randomness go on as if it had never stopped. Only with num_sequences == 1.
  std::vector<int32_t> generated_so_far;
  std::string cache_salt;       // prefixes are shared only between equal salts
  bool use_prefix_cache = true;
  SpeculationParams speculation;
  absl::Time deadline = absl::InfiniteFuture();
};

struct RequestLimits {
  int vocab_size = 0;
  int max_context = 0;          // prompt + max_tokens
  int max_sequences = 8;
  int max_stop_strings = 16;
  int max_stop_string_bytes = 256;
  int max_list_entries = 4096;  // logit_bias, allowed, banned, stop ids
  int max_logprobs = 20;
  int max_draft_depth = 16;
};

// INVALID_ARGUMENT with a sentence that names the field and its bound.
absl::Status validate(const GenerateRequest& request, const RequestLimits& limits);

}  // namespace brigade::runtime
