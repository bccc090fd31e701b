#include "runtime/tokenizer/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace brigade::runtime {
namespace {

// How a lead byte goes on: continuation bytes, and the range allowed for the first of them.
struct LeadByte {
  uint8_t continuations;
  uint8_t low;
  uint8_t high;
};

LeadByte classify(uint8_t lead) {
  if (lead >= 0xC2 && lead <= 0xDF) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

}  // namespace

Utf8Unit decode_utf8(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  const LeadByte shape = classify(lead);
  if (shape.continuations == 0) return {0, 1, false, false};
  char32_t code = lead & (0x3F >> shape.continuations);
  for (uint8_t i = 1; i <= shape.continuations; ++i) {
    if (position + i >= text.size()) return {0, i, false, true};
    const uint8_t low = i == 1 ? shape.low : 0x80;
    const uint8_t high = i == 1 ? shape.high : 0xBF;
    if (byte(i) < low || byte(i) > high) return {0, i, false, false};
    code = (code << 6) | (byte(i) & 0x3F);
  }
  return {code, static_cast<uint8_t>(shape.continuations + 1), true, false};
}

void append_utf8(char32_t code, std::string* out) {
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out->append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = decode_utf8(text, i);
    if (!unit.valid) return false;
    i += unit.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = decode_utf8(text, i);
    if (unit.valid) {
      out.append(text.substr(i, unit.length));
    } else {
      out.append("\xEF\xBF\xBD");
    }
    i += unit.length;
  }
  return out;
}

size_t settled_utf8_prefix(std::string_view text) {
  const size_t start = text.size() > 3 ? text.size() - 3 : 0;
  for (size_t i = start; i < text.size(); ++i) {
    const bool continuation = (static_cast<uint8_t>(text[i]) & 0xC0) == 0x80;
    if (!continuation && decode_utf8(text, i).cut_short) return i;
  }
  return text.size();
}

bool is_unicode_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) ||
         code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

bool is_unicode_number(char32_t code) {
  const auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}

bool is_unicode_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= 0x21 && code <= 0x2F) || (code >= 0x3A && code <= 0x40) ||
           (code >= 0x5B && code <= 0x60) || (code >= 0x7B && code <= 0x7E);
  }
  const auto c = category(code);
  return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

bool is_word_character(char32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  const auto c = category(code);
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

}  // namespace brigade::runtime
