// The byte alphabet of byte-level BPE (GPT-2): every byte is written as one printable character, so
// that a vocabulary file can be text. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brigade::runtime {

// The character that stands for `byte`, in UTF-8.
std::string_view byte_character(uint8_t byte);

// Bytes spelled by `text`; nullopt when a character is not in the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view text);

}  // namespace brigade::runtime
