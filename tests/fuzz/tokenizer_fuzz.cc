// Fuzz entry of the tokenizer. The input is a tokenizer.json, then optionally a zero byte and a text
// for it. The fixed tokenizer sees every text as well. Run it with the seeds in corpus/tokenizer.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/tokenizer/detokenizer.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace {

using brigade::runtime::IncrementalDetokenizer;
using brigade::runtime::TextSpan;
using brigade::runtime::Tokenizer;

void require(bool condition) {
  if (!condition) std::abort();
}

// Properties that hold for every tokenizer that loads.
void exercise(const Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, {.max_bytes = 4096});
  if (!ids.ok()) return;
  IncrementalDetokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : *ids) {
    require(tokenizer.is_token(id));
    const std::string piece = detokenizer.push(id);
    require(brigade::runtime::is_valid_utf8(piece));
    streamed += piece;
  }
  streamed += detokenizer.flush();
  require(streamed == tokenizer.decode(*ids));

  const size_t half = text.size() / 2;
  const TextSpan spans[] = {{text.substr(0, half), true}, {text.substr(half), false}};
  (void)tokenizer.encode_spans(spans);
  (void)tokenizer.encode(text, {.parse_control_tokens = true});
}

// A complete byte-level tokenizer: every text must come back from its tokens' bytes.
std::unique_ptr<Tokenizer> byte_tokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    static int next = 0x100;
    std::string character;
    brigade::runtime::append_utf8(printable ? byte : next++, &character);
    if (character == "\"" || character == "\\") character.insert(0, "\\");
    vocab += (byte == 0 ? "\"" : ",\"") + character + "\":" + std::to_string(byte);
  }
  return *Tokenizer::parse(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "decoder": {"type": "ByteLevel"}, "added_tokens": [{"id": 300, "content": "<|x|>", "special": true}],
      "model": {"merges": [["a", "b"], ["ab", "ab"]], "vocab": {"ab": 256, "abab": 257, )" + vocab + "}}}",
                           "fixed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> fixed = byte_tokenizer();
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  const std::string_view text = split == input.npos ? input : input.substr(split + 1);

  exercise(*fixed, text);
  if (const auto ids = fixed->encode(text); ids.ok()) {
    std::string bytes;
    for (const int32_t id : *ids) bytes += fixed->token_bytes(id);
    require(bytes == text);
  }
  const auto tokenizer = Tokenizer::parse(input.substr(0, split), "input");
  if (tokenizer.ok()) exercise(**tokenizer, text.substr(0, 512));
  return 0;
}
