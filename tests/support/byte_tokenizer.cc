#include "tests/support/byte_tokenizer.h"

#include "kernels/core/check.h"
#include "nlohmann/json.hpp"
#include "runtime/tokenizer/byte_alphabet.h"

namespace brigade::tests {

std::unique_ptr<runtime::Tokenizer> make_byte_tokenizer(const std::vector<std::string>& words) {
  const auto letter = [](uint8_t byte) { return std::string(runtime::byte_character(byte)); };
  nlohmann::json vocab = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[letter(static_cast<uint8_t>(byte))] = byte;
  nlohmann::json merges = nlohmann::json::array();
  int id = 256;
  for (const std::string& word : words) {
    CHECK(word.size() == 2);
    const std::string first = letter(static_cast<uint8_t>(word[0]));
    const std::string second = letter(static_cast<uint8_t>(word[1]));
    vocab[first + second] = id++;
    merges.push_back({first, second});
  }
  const nlohmann::json file = {{"version", "1.0"},
                               {"added_tokens",
                                {{{"id", id},
                                  {"content", "<end>"},
                                  {"special", true},
                                  {"normalized", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"single_word", false}}}},
                               {"normalizer", nullptr},
                               {"pre_tokenizer",
                                {{"type", "ByteLevel"},
                                 {"add_prefix_space", false},
                                 {"trim_offsets", true},
                                 {"use_regex", false}}},
                               {"post_processor", nullptr},
                               {"decoder",
                                {{"type", "ByteLevel"},
                                 {"add_prefix_space", true},
                                 {"trim_offsets", true},
                                 {"use_regex", true}}},
                               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  auto tokenizer = runtime::Tokenizer::parse(file.dump(), "byte tokenizer");
  if (!tokenizer.ok())
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
  CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace brigade::tests
