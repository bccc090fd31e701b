#include "runtime/speculative/vocabulary.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxPartBytes = 1 << 20;
constexpr size_t kShownBytes = 40;

std::string shown(const VocabularyToken& token) {
  if (!token.present) return "no token";
  const std::string& text = token.bytes.empty() ? token.content : token.bytes;
  const std::string kind = token.control ? "control token " : token.special ? "special token " : "";
  return absl::StrCat(kind, "\"", absl::CHexEscape(text.substr(0, kShownBytes)),
                      text.size() > kShownBytes ? "...\"" : "\"");
}

}  // namespace

VocabularyToken vocabulary_token(const Tokenizer& tokenizer, int32_t id) {
  VocabularyToken token;
  token.present = tokenizer.is_token(id);
  if (!token.present) return token;
  token.special = tokenizer.is_special(id);
  token.control = tokenizer.is_control(id);
  token.content = tokenizer.token_content(id).substr(0, DraftBounds::kMaxTokenBytes);
  token.bytes = tokenizer.token_bytes(id).substr(0, DraftBounds::kMaxTokenBytes);
  return token;
}

VocabularyPart vocabulary_part(const Tokenizer& tokenizer, int first_id) {
  VocabularyPart part{.first_id = first_id};
  size_t bytes = 0;
  int id = first_id;
  for (; id < tokenizer.vocab_size(); ++id) {
    if (part.tokens.size() == DraftBounds::kMaxPartTokens || bytes > kMaxPartBytes) break;
    part.tokens.push_back(vocabulary_token(tokenizer, id));
    bytes += part.tokens.back().content.size() + part.tokens.back().bytes.size();
  }
  part.last = id >= tokenizer.vocab_size();
  return part;
}

absl::Status VocabularyComparison::take(const VocabularyPart& part) {
  if (part.first_id != next_id_ || (part.tokens.empty() && !part.last)) {
    return absl::InvalidArgumentError(absl::StrCat("vocabulary: a part from id ", part.first_id,
                                                   ", expected the one from ", next_id_));
  }
  if (part.tokens.size() > static_cast<size_t>(DraftBounds::kMaxVocabulary - next_id_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary: more than ", DraftBounds::kMaxVocabulary, " ids"));
  }
  const auto differ = [](int id, const VocabularyToken& ours, const VocabularyToken& theirs) {
    return absl::FailedPreconditionError(absl::StrCat("the vocabularies differ first at id ", id,
                                                      ": the target's has ", shown(ours),
                                                      ", the draft's ", shown(theirs)));
  };
  for (const VocabularyToken& theirs : part.tokens) {
    const VocabularyToken ours = vocabulary_token(tokenizer_, next_id_);
    if (!(ours == theirs)) return differ(next_id_, ours, theirs);
    ++next_id_;
  }
  if (!part.last) return absl::OkStatus();
  if (next_id_ < tokenizer_.vocab_size()) {
    return differ(next_id_, vocabulary_token(tokenizer_, next_id_), {});
  }
  return absl::FailedPreconditionError(
      "the hashes of the vocabularies differ though all tokens that were sent agree");
}

}  // namespace brigade::runtime
