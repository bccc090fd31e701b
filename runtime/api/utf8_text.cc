#include "runtime/api/utf8_text.h"

#include <cstdint>

namespace brigade::runtime {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 character at the front of `bytes`, 0 if there is none (RFC 3629: no
// overlong forms, no surrogates, nothing above U+10FFFF).
size_t character_length(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  size_t length = 0;
  uint8_t low = 0x80, high = 0xBF;  // bounds of the second byte
  if (first >= 0xC2 && first <= 0xDF) {
    length = 2;
  } else if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  } else if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || bytes.size() < length) return 0;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  }
  return length;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t length = character_length(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

std::string safe_text(std::string_view bytes, size_t max_bytes) {
  std::string text;
  while (!bytes.empty()) {
    const size_t length = character_length(bytes);
    std::string_view character = length == 0 ? kReplacement : bytes.substr(0, length);
    const uint8_t first = static_cast<uint8_t>(character[0]);
    if ((first < 0x20 && first != '\t' && first != '\n') || first == 0x7F) character = " ";
    if (text.size() + character.size() > max_bytes) return text + "...";
    text.append(character);
    bytes.remove_prefix(length == 0 ? 1 : length);
  }
  return text;
}

}  // namespace brigade::runtime
