#include "runtime/tokenizer/byte_alphabet.h"

#include <array>

#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

struct Alphabet {
  std::array<std::string, 256> character;
  std::array<int, 0x144> byte;  // by code point; -1: not in the alphabet

  Alphabet() {
    byte.fill(-1);
    char32_t next = 0x100;  // the unprintable bytes, in order, take U+0100 and up
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t code = printable ? static_cast<char32_t>(b) : next++;
      append_utf8(code, &character[b]);
      byte[code] = b;
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

std::string_view byte_character(uint8_t byte) { return alphabet().character[byte]; }

std::optional<std::string> bytes_of_alphabet(std::string_view text) {
  const Alphabet& table = alphabet();
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = decode_utf8(text, i);
    if (!unit.valid || unit.code >= table.byte.size() || table.byte[unit.code] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(table.byte[unit.code]));
    i += unit.length;
  }
  return bytes;
}

}  // namespace brigade::runtime
