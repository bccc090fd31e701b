// UTF-8 for text that may be broken: decoding one character, the one rule for invalid bytes, and the
// few character classes that tokenizer files name. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace brigade::runtime {

// One step through text. Invalid bytes form a unit of their own: the longest prefix of a well-formed
// character (Unicode 3.9 "maximal subpart"), at least one byte. `cut_short`: the text ended inside a
// character that was well formed so far.
struct Utf8Unit {
  char32_t code = 0;  // only when valid
  uint8_t length = 0;
  bool valid = false;
  bool cut_short = false;
};

// The unit at `position`, which must be inside `text`.
Utf8Unit decode_utf8(std::string_view text, size_t position);

void append_utf8(char32_t code, std::string* out);
bool is_valid_utf8(std::string_view text);

// The rule for invalid bytes everywhere in this room: each unit that is not a character becomes one
// U+FFFD. The same as Unicode's recommended practice, WHATWG decoders and Rust's from_utf8_lossy.
std::string replace_invalid_utf8(std::string_view text);

// Bytes of `text` that end at a unit which later bytes cannot change; the rest (at most 3 bytes) is the
// beginning of a character.
size_t settled_utf8_prefix(std::string_view text);

bool is_unicode_space(char32_t code);        // White_Space
bool is_unicode_number(char32_t code);       // Nd, Nl, No
bool is_unicode_punctuation(char32_t code);  // P*, and all ASCII punctuation
bool is_word_character(char32_t code);       // L*, M*, Nd, Nl, Pc, joiners

}  // namespace brigade::runtime
