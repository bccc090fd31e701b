// The decoder of a tokenizer file: the bytes each token stands for. Supported: ByteLevel, ByteFallback,
// Fuse, Replace with a literal, Strip, Metaspace, and a Sequence of these in which nothing but a Strip
// of leading characters follows Fuse; anything else is refused by name. Immutable, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

class TokenDecoder {
 public:
  static absl::StatusOr<TokenDecoder> parse(const nlohmann::json& value, const std::string& where);

  // Bytes of a token with this content: in the middle of a text, or as its first token.
  std::string bytes(std::string_view content, bool first_in_text) const;

  // True when bytes() can differ between first and middle.
  bool first_differs() const { return metaspace_strips_; }

  // Up to this many `strip_character`s at the beginning of a whole text are not part of it.
  int strip_count() const { return strip_count_; }
  char strip_character() const { return strip_character_; }

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Replace {
    std::string pattern;
    std::string content;
  };
  struct StripEach {
    char character;
    int start;
    int stop;
  };
  struct Metaspace {
    std::string replacement;
    bool strip_first;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Replace, StripEach, Metaspace>;

  absl::Status add_steps(const nlohmann::json& value, const std::string& where);
  absl::Status add_strip(const nlohmann::json& value, const std::string& where);
  absl::Status add_replace(const nlohmann::json& value, const std::string& where);
  absl::Status add_metaspace(const nlohmann::json& value, const std::string& where);

  std::vector<Step> steps_;
  bool fused_ = false;
  bool metaspace_strips_ = false;
  int strip_count_ = 0;
  char strip_character_ = ' ';
};

}  // namespace brigade::runtime
