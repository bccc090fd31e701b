#include "runtime/tokenizer/normalizer.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxSteps = 64;

absl::Status too_long(size_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("normalizer: the text grows past ", limit, " bytes"));
}

// Calls find for each stretch of valid UTF-8 and moves the matches to offsets in `text`.
absl::Status find_in_valid(const Pattern& pattern, std::string_view text,
                           std::vector<TextRange>* matches) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size()) {
      const Utf8Unit unit = decode_utf8(text, end);
      if (!unit.valid) break;
      end += unit.length;
    }
    const size_t first = matches->size();
    RETURN_IF_ERROR(pattern.find_all(text.substr(begin, end - begin), matches));
    for (size_t i = first; i < matches->size(); ++i) {
      (*matches)[i].begin += begin;
      (*matches)[i].end += begin;
    }
    begin = end == text.size() ? end : end + decode_utf8(text, end).length;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::parse(const nlohmann::json& value, const std::string& where) {
  Normalizer normalizer;
  if (!value.is_null()) RETURN_IF_ERROR(normalizer.add_steps(value, where));
  return normalizer;
}

// Nesting is bounded by the JSON reader's depth limit.
absl::Status Normalizer::add_steps(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  ASSIGN_OR_RETURN(const std::string type, string_field(value, "type", where));
  if (steps_.size() >= kMaxSteps) return json_error(where, "too many normalizers");
  if (type == "Sequence") {
    RETURN_IF_ERROR(check_keys(value, {"type", "normalizers"}, where));
    ASSIGN_OR_RETURN(const nlohmann::json* parts, array_field(value, "normalizers", where));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(add_steps((*parts)[i], absl::StrCat(where, ".normalizers[", i, "]")));
    }
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    RETURN_IF_ERROR(check_keys(value, {"type", "prepend"}, where));
    ASSIGN_OR_RETURN(std::string text, string_field(value, "prepend", where));
    steps_.emplace_back(Prepend{std::move(text)});
    return absl::OkStatus();
  }
  if (type == "Replace") {
    RETURN_IF_ERROR(check_keys(value, {"type", "pattern", "content"}, where));
    Replace step;
    ASSIGN_OR_RETURN(step.content, string_field(value, "content", where));
    const nlohmann::json* pattern = find_field(value, "pattern");
    if (pattern == nullptr) return json_error(where, "key \"pattern\" is missing");
    ASSIGN_OR_RETURN(Pattern compiled, Pattern::parse(*pattern, absl::StrCat(where, ".pattern")));
    if (pattern->contains("String")) {
      step.literal = pattern->at("String").get<std::string>();
    } else {
      step.pattern.push_back(std::move(compiled));
    }
    steps_.emplace_back(std::move(step));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(check_keys(value, {"type"}, where));
  if (type == "NFC") return steps_.emplace_back(UnicodeForm::kNfc), absl::OkStatus();
  if (type == "NFD") return steps_.emplace_back(UnicodeForm::kNfd), absl::OkStatus();
  if (type == "NFKC") return steps_.emplace_back(UnicodeForm::kNfkc), absl::OkStatus();
  if (type == "NFKD") return steps_.emplace_back(UnicodeForm::kNfkd), absl::OkStatus();
  return json_error(where, absl::StrCat("normalizer type \"", type, "\" is not supported"));
}

absl::StatusOr<std::string> Normalizer::replace(const Replace& step, const std::string& text,
                                                size_t limit) {
  std::vector<TextRange> matches;
  if (step.literal.empty()) {
    RETURN_IF_ERROR(find_in_valid(step.pattern[0], text, &matches));
  } else {
    for (size_t at = text.find(step.literal); at != std::string::npos;
         at = text.find(step.literal, at + step.literal.size())) {
      matches.push_back({static_cast<uint32_t>(at),
                         static_cast<uint32_t>(at + step.literal.size())});
    }
  }
  std::string out;
  size_t copied = 0;
  for (const TextRange& match : matches) {
    out.append(text, copied, match.begin - copied);
    out.append(step.content);
    copied = match.end;
    if (out.size() > limit) return too_long(limit);
  }
  out.append(text, copied);
  return out;
}

absl::StatusOr<std::string> Normalizer::apply(std::string text) const {
  if (text.empty()) return text;
  const size_t limit = 16 * text.size() + (1 << 20);
  for (const Step& step : steps_) {
    if (const auto* form = std::get_if<UnicodeForm>(&step)) {
      text = normalize_unicode(text, *form);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!text.empty()) text.insert(0, prepend->text);
    } else {
      ASSIGN_OR_RETURN(text, replace(std::get<Replace>(step), text, limit));
    }
    if (text.size() > limit) return too_long(limit);
  }
  return text;
}

}  // namespace brigade::runtime
