// The post-processor of a tokenizer file, as far as it concerns one text: ids put before and after it.
// Supported: null, Sequence, TemplateProcessing, ByteLevel (changes no ids); anything else is refused
// by name. Plain data after parse.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

struct PostProcessor {
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;

  // `value` is the file's "post_processor", null included.
  static absl::StatusOr<PostProcessor> parse(const nlohmann::json& value, const std::string& where);
};

}  // namespace brigade::runtime
