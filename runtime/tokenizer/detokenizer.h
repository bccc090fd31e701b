// Token ids to text one at a time, for streaming: what push() returns is final and never ends inside a
// character; all pushes and the flush joined are exactly Tokenizer::decode of all ids. One per
// sequence, used by one thread; O(bytes of the token) a push.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace brigade::runtime {

class IncrementalDetokenizer {
 public:
  // `tokenizer` must outlive this.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // Text that `id` completes: maybe empty, maybe with the end of an earlier character. Invalid bytes
  // become U+FFFD by the rule of replace_invalid_utf8.
  std::string push(int32_t id);

  // The rest: a character that stayed incomplete is one U+FFFD. Empty when called again.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  bool first_;           // the next token begins the text
  int strip_left_;       // leading characters the decoder still strips
  std::string pending_;  // the beginning of a character, at most 3 bytes between calls
};

}  // namespace brigade::runtime
