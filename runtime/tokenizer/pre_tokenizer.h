// The pre-tokenizer of a tokenizer file: cuts normalized text into pieces; merges never cross a piece.
// Supported: null, Sequence, ByteLevel, Split, Digits, Punctuation, Metaspace; anything else is refused
// by name. Immutable after parse; apply may run on many threads at once.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/tokenizer/pattern.h"

namespace brigade::runtime {

// Consecutive pieces of `text`. An opaque piece holds bytes that are not UTF-8; no pattern sees it.
struct Piece {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool opaque = false;
};
struct PieceList {
  std::string text;
  std::vector<Piece> pieces;
};

// One piece for each stretch of valid or of invalid bytes.
PieceList make_pieces(std::string text);

class PreTokenizer {
 public:
  // `value` is the file's "pre_tokenizer", null included.
  static absl::StatusOr<PreTokenizer> parse(const nlohmann::json& value, const std::string& where);

  // `at_text_start`: the first piece begins the whole text (Metaspace's prepend_scheme "first").
  absl::Status apply(bool at_text_start, PieceList* list) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Pattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct CharacterSplit {
    bool (*matches)(char32_t);
    Behavior behavior;
  };
  struct ByteLevel {
    bool add_prefix_space;
    std::vector<Pattern> pattern;  // one with use_regex, else none
  };
  struct Metaspace {
    std::string replacement;
    bool prepend_always;
    bool prepend_first;
    bool split;
  };
  using Step = std::variant<Split, CharacterSplit, ByteLevel, Metaspace>;
  struct Span {
    TextRange range;
    bool is_match;
  };

  absl::Status add_steps(const nlohmann::json& value, const std::string& where);
  absl::Status add_byte_level(const nlohmann::json& value, const std::string& where);
  absl::Status add_metaspace(const nlohmann::json& value, const std::string& where);
  absl::Status add_split(const nlohmann::json& value, const std::string& where);
  static absl::StatusOr<Behavior> behavior_field(const nlohmann::json& value,
                                                 const std::string& where);

  template <typename Find>
  static absl::Status split(const Find& find, Behavior behavior, bool invert, PieceList* list);
  static void apply_behavior(const std::vector<Span>& spans, Behavior behavior, uint32_t offset,
                             std::vector<Piece>* out);
  static absl::Status apply_byte_level(const ByteLevel& step, PieceList* list);
  static absl::Status apply_metaspace(const Metaspace& step, bool at_text_start, PieceList* list);

  std::vector<Step> steps_;
};

}  // namespace brigade::runtime
