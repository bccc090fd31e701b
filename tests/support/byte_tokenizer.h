// A small byte-level tokenizer made in memory: ids 0 to 255 are the bytes, then the given words
// (each reachable by merges from left to right), then a control token "<end>".
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace brigade::tests {

std::unique_ptr<runtime::Tokenizer> make_byte_tokenizer(const std::vector<std::string>& words);

// Id of the i-th word; of "<end>" with i = number of words. Words must have two bytes.
constexpr int32_t word_id(int i) { return 256 + i; }

}  // namespace brigade::tests
