#include "runtime/tokenizer/token_decoder.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/json_fields.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxSteps = 64;
constexpr int64_t kMaxStrip = 1024;

// "<0x41>" is one byte; anything else is itself.
std::string fallback_bytes(std::string text) {
  if (text.size() != 6 || text.compare(0, 3, "<0x") != 0 || text[5] != '>') return text;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(&text[3], &text[5], byte, 16);
  if (error != std::errc() || end != &text[5]) return text;
  return std::string(1, static_cast<char>(byte));
}

std::string strip_ends(std::string text, char character, int start, int stop) {
  size_t begin = 0;
  size_t end = text.size();
  while (begin < end && start-- > 0 && text[begin] == character) ++begin;
  while (begin < end && stop-- > 0 && text[end - 1] == character) --end;
  return text.substr(begin, end - begin);
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::parse(const nlohmann::json& value,
                                                 const std::string& where) {
  if (value.is_null()) {
    return json_error(where, "is null; a decoder is needed to turn tokens into text");
  }
  TokenDecoder decoder;
  RETURN_IF_ERROR(decoder.add_steps(value, where));
  return decoder;
}

absl::Status TokenDecoder::add_strip(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(value, {"type", "content", "start", "stop"}, where));
  ASSIGN_OR_RETURN(const std::string content, string_field(value, "content", where));
  ASSIGN_OR_RETURN(const int64_t start, int_field(value, "start", 0, kMaxStrip, where));
  ASSIGN_OR_RETURN(const int64_t stop, int_field(value, "stop", 0, kMaxStrip, where));
  if (content.size() != 1) return json_error(where, "key \"content\" must be one ASCII character");
  if (!fused_) {
    steps_.emplace_back(
        StripEach{content[0], static_cast<int>(start), static_cast<int>(stop)});
    return absl::OkStatus();
  }
  if (stop != 0) return json_error(where, "a Strip at the end of the text is not supported");
  if (strip_count_ > 0) return json_error(where, "a second Strip after Fuse is not supported");
  strip_count_ = static_cast<int>(start);
  strip_character_ = content[0];
  return absl::OkStatus();
}

absl::Status TokenDecoder::add_replace(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(value, {"type", "pattern", "content"}, where));
  const nlohmann::json* pattern = find_field(value, "pattern");
  if (pattern == nullptr || !pattern->is_object() || !pattern->contains("String")) {
    return json_error(where, "only a Replace of a {\"String\": ...} pattern is supported");
  }
  Replace step;
  ASSIGN_OR_RETURN(step.pattern, string_field(*pattern, "String", where));
  ASSIGN_OR_RETURN(step.content, string_field(value, "content", where));
  if (step.pattern.empty()) return json_error(where, "empty pattern");
  steps_.emplace_back(std::move(step));
  return absl::OkStatus();
}

absl::Status TokenDecoder::add_metaspace(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(
      value, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"},
      where));
  Metaspace step;
  ASSIGN_OR_RETURN(step.replacement, string_field(value, "replacement", where));
  if (step.replacement.empty()) return json_error(where, "key \"replacement\" is empty");
  ASSIGN_OR_RETURN(const bool add_prefix, bool_field(value, "add_prefix_space", true, where));
  std::string scheme = add_prefix ? "always" : "never";
  if (find_field(value, "prepend_scheme") != nullptr) {
    ASSIGN_OR_RETURN(scheme, string_field(value, "prepend_scheme", where));
  }
  step.strip_first = scheme != "never";
  metaspace_strips_ |= step.strip_first;
  steps_.emplace_back(std::move(step));
  return absl::OkStatus();
}

// Nesting is bounded by the JSON reader's depth limit.
absl::Status TokenDecoder::add_steps(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  ASSIGN_OR_RETURN(const std::string type, string_field(value, "type", where));
  if (steps_.size() >= kMaxSteps) return json_error(where, "too many decoders");
  if (type == "Sequence") {
    RETURN_IF_ERROR(check_keys(value, {"type", "decoders"}, where));
    ASSIGN_OR_RETURN(const nlohmann::json* parts, array_field(value, "decoders", where));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(add_steps((*parts)[i], absl::StrCat(where, ".decoders[", i, "]")));
    }
    return absl::OkStatus();
  }
  if (type == "Strip") return add_strip(value, where);
  if (fused_) return json_error(where, absl::StrCat("decoder \"", type, "\" after Fuse is not supported"));
  if (type == "Fuse") return fused_ = true, absl::OkStatus();
  if (type == "ByteLevel") return steps_.emplace_back(ByteLevel{}), absl::OkStatus();
  if (type == "ByteFallback") return steps_.emplace_back(ByteFallback{}), absl::OkStatus();
  if (type == "Replace") return add_replace(value, where);
  if (type == "Metaspace") return add_metaspace(value, where);
  return json_error(where, absl::StrCat("decoder type \"", type, "\" is not supported"));
}

std::string TokenDecoder::bytes(std::string_view content, bool first_in_text) const {
  std::string text(content);
  for (const Step& step : steps_) {
    if (std::holds_alternative<ByteLevel>(step)) {
      // A token outside the byte alphabet (an added one) is its own UTF-8.
      if (auto bytes = bytes_of_alphabet(text)) text = *std::move(bytes);
    } else if (std::holds_alternative<ByteFallback>(step)) {
      text = fallback_bytes(std::move(text));
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      text = absl::StrReplaceAll(text, {{replace->pattern, replace->content}});
    } else if (const auto* strip = std::get_if<StripEach>(&step)) {
      text = strip_ends(std::move(text), strip->character, strip->start, strip->stop);
    } else {
      const auto& metaspace = std::get<Metaspace>(step);
      const bool drop = first_in_text && metaspace.strip_first;
      text = absl::StrReplaceAll(text, {{metaspace.replacement, drop ? "" : " "}});
    }
  }
  return text;
}

}  // namespace brigade::runtime
