// Tokenizer files write their patterns for the Oniguruma engine (Ruby syntax). This turns one into the
// same pattern for PCRE2, with the character classes spelled out where the two engines differ, and
// refuses by name what it cannot carry over exactly. Pure function, any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace brigade::runtime {

// INVALID_ARGUMENT names the construct and its offset.
absl::StatusOr<std::string> translate_pattern(std::string_view pattern);

// `text` as a pattern that matches it literally.
std::string quote_pattern(std::string_view text);

}  // namespace brigade::runtime
