// Bounded JSON reading for every file the runtime takes from outside (config, tokenizer, index,
// safetensors header). Depth and size are limited and duplicate keys refused, so a hostile file costs
// an error, not memory or stack. Thread-safe: no state.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

struct JsonLimits {
  size_t max_bytes = 100u << 20;
  int max_depth = 64;
};

// Parses `text`; `name` (a file, "header of x.safetensors") appears in the error. Objects keep their
// keys sorted. INVALID_ARGUMENT: not JSON, too deep, too large, a key twice in one object.
absl::StatusOr<nlohmann::json> parse_json(std::string_view text, const std::string& name,
                                          const JsonLimits& limits = {});

// Reads a whole file, at most limits.max_bytes, and parses it. NOT_FOUND when it is missing.
absl::StatusOr<nlohmann::json> read_json_file(const std::string& path, const JsonLimits& limits = {});

}  // namespace brigade::runtime
