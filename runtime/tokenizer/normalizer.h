// The normalizer of a tokenizer file: rewrites text before it is cut into pieces. Supported: null,
// Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace; anything else is refused by name. Bytes that are
// not UTF-8 pass through. Immutable after parse; apply may run on many threads at once.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/tokenizer/pattern.h"
#include "runtime/tokenizer/unicode_form.h"

namespace brigade::runtime {

class Normalizer {
 public:
  // `value` is the file's "normalizer", null included.
  static absl::StatusOr<Normalizer> parse(const nlohmann::json& value, const std::string& where);

  bool is_identity() const { return steps_.empty(); }

  // RESOURCE_EXHAUSTED when the result would pass 16 times the input plus 1 MiB.
  absl::StatusOr<std::string> apply(std::string text) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::string literal;             // when not empty, else `pattern`
    std::vector<Pattern> pattern;    // one, or none
    std::string content;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace>;

  absl::Status add_steps(const nlohmann::json& value, const std::string& where);
  static absl::StatusOr<std::string> replace(const Replace& step, const std::string& text,
                                             size_t limit);

  std::vector<Step> steps_;
};

}  // namespace brigade::runtime
