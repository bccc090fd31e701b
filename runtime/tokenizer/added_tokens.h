// Added tokens: strings that are cut out of the text before normalization and pre-tokenization and
// become one id each. Finding them is linear in the text. Immutable after parse, any thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/tokenizer/pattern.h"

namespace brigade::runtime {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // left out of decoded text on request
  bool normalized = false;   // looked for after normalization
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // not inside a word
  // Steers the model rather than being text: special, or written as such markers are (<|...|>, also
  // with full-width bars; several model families forget the special flag there).
  bool control = false;
};

// The file's "added_tokens" (null: none). INVALID_ARGUMENT names the index: missing or unknown keys,
// empty or overlong content, an id or a content given twice.
absl::StatusOr<std::vector<AddedToken>> parse_added_tokens(const nlohmann::json& value,
                                                           const std::string& where);

// A stretch of text: an added token, or text between them (token == nullptr).
struct TextCut {
  TextRange range;
  const AddedToken* token = nullptr;
};

// Finds a set of added tokens, leftmost first, the longest among those that start together.
class AddedTokenFinder {
 public:
  // `token` must outlive this; `content` is what is looked for (its normalized content, maybe).
  void add(const AddedToken* token, std::string_view content);
  bool empty() const { return tokens_.empty(); }

  // May `token` be cut out of bytes [begin, end)?
  using Allow = std::function<bool(const AddedToken& token, size_t begin, size_t end)>;

  // Cuts `text` into found tokens and the text between, in order, empty text left out.
  std::vector<TextCut> cut(std::string_view text, const Allow& allow) const;

 private:
  struct Hit {
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  Hit longest_at(std::string_view text, size_t begin, const Allow& allow) const;

  // A trie: node 0 is the root, `child_` maps node << 8 | byte to a node.
  std::vector<const AddedToken*> tokens_;
  absl::flat_hash_map<uint64_t, uint32_t> child_;
  std::vector<const AddedToken*> token_of_node_ = {nullptr};
  std::array<bool, 256> first_byte_{};
};

}  // namespace brigade::runtime
