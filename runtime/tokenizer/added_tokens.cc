#include "runtime/tokenizer/added_tokens.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxTokens = 65536;
// Bounds the work at one position of the text.
constexpr size_t kMaxContentBytes = 512;
constexpr int64_t kMaxId = (4 << 20) + 65536;
constexpr char kFullWidthBar[] = "\xEF\xBD\x9C";  // U+FF5C

bool looks_like_control(const std::string& content) {
  const auto between = [&](const std::string& open, const std::string& close) {
    return content.size() > open.size() + close.size() && absl::StartsWith(content, open) &&
           absl::EndsWith(content, close);
  };
  return between("<|", "|>") ||
         between(absl::StrCat("<", kFullWidthBar), absl::StrCat(kFullWidthBar, ">"));
}

absl::StatusOr<AddedToken> parse_one(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  RETURN_IF_ERROR(check_keys(
      value, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}, where));
  AddedToken token;
  ASSIGN_OR_RETURN(const int64_t id, int_field(value, "id", 0, kMaxId, where));
  token.id = static_cast<int32_t>(id);
  ASSIGN_OR_RETURN(token.content, string_field(value, "content", where));
  if (token.content.empty() || token.content.size() > kMaxContentBytes) {
    return json_error(where, absl::StrCat("content of ", token.content.size(),
                                          " bytes, allowed are 1 to ", kMaxContentBytes));
  }
  ASSIGN_OR_RETURN(token.special, bool_field(value, "special", false, where));
  ASSIGN_OR_RETURN(token.normalized, bool_field(value, "normalized", !token.special, where));
  ASSIGN_OR_RETURN(token.lstrip, bool_field(value, "lstrip", false, where));
  ASSIGN_OR_RETURN(token.rstrip, bool_field(value, "rstrip", false, where));
  ASSIGN_OR_RETURN(token.single_word, bool_field(value, "single_word", false, where));
  token.control = token.special || looks_like_control(token.content);
  return token;
}

// The unit that ends at `end`, decoded; 0 when it is not a character.
char32_t character_before(std::string_view text, size_t end, size_t* begin) {
  *begin = end - 1;
  while (*begin > 0 && end - *begin < 4 && (static_cast<uint8_t>(text[*begin]) & 0xC0) == 0x80) {
    --*begin;
  }
  const Utf8Unit unit = decode_utf8(text, *begin);
  if (unit.valid && *begin + unit.length == end) return unit.code;
  *begin = end - 1;
  return 0;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  size_t unused = 0;
  if (begin > 0 && is_word_character(character_before(text, begin, &unused))) return true;
  if (end >= text.size()) return false;
  const Utf8Unit unit = decode_utf8(text, end);
  return unit.valid && is_word_character(unit.code);
}

size_t skip_spaces_back(std::string_view text, size_t begin, size_t stop) {
  while (begin > stop) {
    size_t previous = 0;
    if (!is_unicode_space(character_before(text, begin, &previous)) || previous < stop) break;
    begin = previous;
  }
  return begin;
}

size_t skip_spaces(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Unit unit = decode_utf8(text, end);
    if (!unit.valid || !is_unicode_space(unit.code)) break;
    end += unit.length;
  }
  return end;
}

TextCut make_cut(size_t begin, size_t end, const AddedToken* token) {
  return {{static_cast<uint32_t>(begin), static_cast<uint32_t>(end)}, token};
}

}  // namespace

absl::StatusOr<std::vector<AddedToken>> parse_added_tokens(const nlohmann::json& value,
                                                           const std::string& where) {
  std::vector<AddedToken> tokens;
  if (value.is_null()) return tokens;
  if (!value.is_array()) return json_error(where, "must be an array");
  if (value.size() > kMaxTokens) {
    return json_error(where, absl::StrCat(value.size(), " entries, limit is ", kMaxTokens));
  }
  absl::flat_hash_set<std::string> contents;
  absl::flat_hash_set<int32_t> ids;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string place = absl::StrCat(where, "[", i, "]");
    ASSIGN_OR_RETURN(AddedToken token, parse_one(value[i], place));
    if (!contents.insert(token.content).second) return json_error(place, "content appears twice");
    if (!ids.insert(token.id).second) {
      return json_error(place, absl::StrCat("id ", token.id, " appears twice"));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

void AddedTokenFinder::add(const AddedToken* token, std::string_view content) {
  if (content.empty()) return;
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto entry = child_.emplace(key, static_cast<uint32_t>(token_of_node_.size()));
    if (entry.second) token_of_node_.push_back(nullptr);
    node = entry.first->second;
  }
  if (token_of_node_[node] == nullptr) token_of_node_[node] = token;
  first_byte_[static_cast<uint8_t>(content[0])] = true;
  tokens_.push_back(token);
}

AddedTokenFinder::Hit AddedTokenFinder::longest_at(std::string_view text, size_t begin,
                                                   const Allow& allow) const {
  Hit hit;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto next = child_.find(static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(text[at]));
    if (next == child_.end()) break;
    node = next->second;
    const AddedToken* token = token_of_node_[node];
    if (token != nullptr && allow(*token, begin, at + 1)) hit = {at + 1, token};
  }
  return hit;
}

std::vector<TextCut> AddedTokenFinder::cut(std::string_view text, const Allow& allow) const {
  std::vector<TextCut> cuts;
  size_t covered = 0;
  for (size_t at = 0; at < text.size();) {
    if (!first_byte_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const Hit hit = longest_at(text, at, allow);
    if (hit.token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = hit.end;
    at = hit.end;
    if (hit.token->single_word && touches_word(text, begin, end)) continue;
    if (hit.token->lstrip) begin = skip_spaces_back(text, begin, covered);
    if (hit.token->rstrip) end = skip_spaces(text, end);
    if (covered < begin) cuts.push_back(make_cut(covered, begin, nullptr));
    cuts.push_back(make_cut(begin, end, hit.token));
    covered = at = end;
  }
  if (covered < text.size()) cuts.push_back(make_cut(covered, text.size(), nullptr));
  return cuts;
}

}  // namespace brigade::runtime
