// A compiled pattern of a tokenizer file: finds all matches in valid UTF-8 in time linear in the text
// for the patterns in use, on constant stack (backtracking state lives on the heap and is capped). A
// pattern that retries too much on a text gets an error within seconds, not an endless search.
// Immutable after compile; find_all may run on many threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

struct pcre2_real_code_8;

namespace brigade::runtime {

struct TextRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

class Pattern {
 public:
  // `source` is in the syntax of tokenizer files; see pattern_syntax.h for what is refused.
  static absl::StatusOr<Pattern> compile(std::string_view source);
  // {"Regex": "..."} or {"String": "..."}, as Split and Replace write it.
  static absl::StatusOr<Pattern> parse(const nlohmann::json& value, const std::string& where);

  // Appends the matches in `text` (valid UTF-8, under 4 GiB) from left to right; they do not overlap
  // but may be empty. RESOURCE_EXHAUSTED when the pattern needs too much backtracking on this text.
  absl::Status find_all(std::string_view text, std::vector<TextRange>* matches) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* code) const;
  };
  Pattern() = default;
  // pcre2_match for a match that begins in [at, last_start].
  int match(std::string_view text, size_t at, size_t last_start) const;

  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
};

}  // namespace brigade::runtime
