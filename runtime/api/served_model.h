// What the doors need to know about the model behind them. Plain data plus two functions of its
// tokenizer; immutable once serving, read by any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/request/request.h"

namespace brigade::runtime {

struct ServedModel {
  std::string name, family;
  std::string device;      // of the coordinator, as it calls itself
  bool same_words = true;  // false: fast GPU maths
  RequestLimits limits;  // vocabulary and context among them
  int layers = 0, moe_layers = 0, experts = 0, experts_per_token = 0;
  int64_t parameters_total = 0, parameters_active = 0;
  std::vector<int32_t> eos_tokens;
  // From the checkpoint; used when a request leaves a field unset.
  std::optional<double> default_temperature, default_top_p;
  std::optional<int> default_top_k;
  // When max_tokens is unset; the context's rest if smaller.
  int default_max_tokens = 256;
  bool prefix_cache = true;  // false: no request uses it
  SpeculationParams default_speculation = {.mode = SpeculationMode::kOff, .depth = 0};

  // Text to token ids; empty when the model has no tokenizer. Thread-safe.
  std::function<absl::StatusOr<std::vector<int32_t>>(std::string_view text, bool add_special_tokens,
                                                     bool parse_control_tokens)>
      encode;
  // The bytes of one token, for the alternatives of log-probabilities. Thread-safe; may be empty.
  std::function<std::string(int32_t token)> piece;
};

}  // namespace brigade::runtime
