#include "runtime/tokenizer/detokenizer.h"

#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer,
                                               const DecodeOptions& options)
    : tokenizer_(&tokenizer),
      options_(options),
      first_(options.starts_text),
      strip_left_(options.starts_text ? tokenizer.decoder().strip_count() : 0) {}

std::string IncrementalDetokenizer::push(int32_t id) {
  if (options_.skip_special && tokenizer_->is_special(id)) return "";
  const TokenDecoder& decoder = tokenizer_->decoder();
  if (!tokenizer_->is_token(id)) {
    pending_ += "\xEF\xBF\xBD";
  } else if (first_ && decoder.first_differs()) {
    pending_ += decoder.bytes(tokenizer_->token_content(id), /*first_in_text=*/true);
  } else {
    pending_ += tokenizer_->token_bytes(id);
  }
  first_ = false;
  size_t strip = 0;
  while (strip_left_ > 0 && strip < pending_.size()) {
    if (pending_[strip] == decoder.strip_character()) {
      ++strip;
      --strip_left_;
    } else {
      strip_left_ = 0;
    }
  }
  pending_.erase(0, strip);
  const size_t settled = settled_utf8_prefix(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, settled));
  pending_.erase(0, settled);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text = replace_invalid_utf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace brigade::runtime
