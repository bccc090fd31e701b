// Text to token ids and back, from a Hugging Face tokenizer.json (BPE, byte-level or with byte
// fallback). Everything in the file that could change ids is either done or refused by name.
// Immutable after load, any number of threads; one per model, owned by whoever loads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/tokenizer/added_tokens.h"
#include "runtime/tokenizer/bpe_model.h"
#include "runtime/tokenizer/normalizer.h"
#include "runtime/tokenizer/post_processor.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/token_decoder.h"

namespace brigade::runtime {

struct EncodeOptions {
  bool add_special_tokens = true;     // what the post-processor adds: BOS and the like
  bool parse_control_tokens = false;  // "<|im_end|>" in the text becomes that token, not its letters
  size_t max_bytes = 16 << 20;        // INVALID_ARGUMENT above
};

// A stretch of templated text. Control tokens are recognized only where a whole one lies in trusted
// text: the template's own words, never a user's.
struct TextSpan {
  std::string_view text;
  bool trusted = false;
};

struct DecodeOptions {
  bool skip_special = true;
  // False when the text continues an earlier one, such as a prompt: then the first token keeps the
  // leading space that SentencePiece-like decoders strip from a whole text.
  bool starts_text = true;
};

class Tokenizer {
 public:
  // NOT_FOUND, or INVALID_ARGUMENT with the file and the key.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& tokenizer_json_path);
  // The same from the file's text; `name` appears in errors.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> parse(std::string_view json_text,
                                                          const std::string& name);

  // Bytes that are not UTF-8 are encoded as bytes where the vocabulary has them. INVALID_ARGUMENT:
  // too long, or a character the vocabulary cannot express. RESOURCE_EXHAUSTED: the file's own
  // patterns ask for too much work on this text.
  absl::StatusOr<std::vector<int32_t>> encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;
  // Encodes the concatenation of `spans`; options.parse_control_tokens is not read.
  absl::StatusOr<std::vector<int32_t>> encode_spans(std::span<const TextSpan> spans,
                                                    const EncodeOptions& options = {}) const;

  // Text of `ids`; invalid bytes become U+FFFD by replace_invalid_utf8, ids outside the vocabulary
  // U+FFFD each.
  std::string decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // Raw bytes of one token in the middle of a text, maybe part of a character. Empty when unknown.
  const std::string& token_bytes(int32_t id) const;
  // The token as the file writes it (an added token that is looked for in normalized text: its
  // normalized form). Empty when unknown.
  const std::string& token_content(int32_t id) const;
  bool is_token(int32_t id) const;    // in the vocabulary (ids may have holes)
  bool is_special(int32_t id) const;  // left out by skip_special
  bool is_control(int32_t id) const;  // never made from text unless asked for
  int vocab_size() const { return static_cast<int>(tokens_.size()); }  // highest id + 1
  std::optional<int32_t> token_id(std::string_view content) const;
  const TokenDecoder& decoder() const { return decoder_; }

  // XXH3 over bytes and flags of every id. Two tokenizers with equal hashes give every id the same
  // meaning; first_difference finds the first that differs (nullopt: none).
  uint64_t vocabulary_hash() const { return vocabulary_hash_; }
  std::optional<int32_t> first_difference(const Tokenizer& other) const;

 private:
  struct Token {
    std::string content;
    std::string bytes;
    bool present = false;
    bool special = false;
    bool control = false;
    bool operator==(const Token&) const = default;
  };
  struct EncodeCall;

  const Token& token_or_blank(int32_t id) const;

  Tokenizer() = default;
  absl::Status build(const nlohmann::json& file);
  absl::Status build_tokens();
  void build_finders();
  void hash_vocabulary();
  absl::StatusOr<std::vector<int32_t>> run(EncodeCall* call, std::string_view text) const;
  absl::Status encode_text(std::string_view text, bool at_text_start, EncodeCall* call) const;
  absl::Status encode_plain(std::string_view text, bool at_text_start, EncodeCall* call) const;

  std::vector<AddedToken> added_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  PostProcessor post_processor_;
  TokenDecoder decoder_;
  AddedTokenFinder raw_finder_;         // tokens looked for in the text as it came
  AddedTokenFinder normalized_finder_;  // tokens looked for after normalization
  AddedTokenFinder mixed_finder_;       // raw tokens and all control tokens: partly trusted text
  std::vector<Token> tokens_;           // by id
  absl::flat_hash_map<std::string, int32_t> id_of_added_;
  uint64_t vocabulary_hash_ = 0;
};

}  // namespace brigade::runtime
