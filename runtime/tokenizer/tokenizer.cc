#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

absl::Status check_length(size_t bytes, const EncodeOptions& options) {
  constexpr size_t kHardLimit = size_t{1} << 28;  // offsets and the byte alphabet fit 32 bits
  const size_t limit = std::min(options.max_bytes, kHardLimit);
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("text of ", bytes, " bytes, limit is ", limit));
}

}  // namespace

// State of one encode call.
struct Tokenizer::EncodeCall {
  enum class Trust { kNone, kAll, kMixed };
  const EncodeOptions* options;
  Trust trust = Trust::kNone;
  std::vector<TextRange> trusted;  // with kMixed: sorted, neighbours joined
  BpeScratch scratch;
  std::vector<int32_t> ids;

  bool covers(size_t begin, size_t end) const {
    const auto after = std::upper_bound(
        trusted.begin(), trusted.end(), begin,
        [](size_t position, const TextRange& range) { return position < range.begin; });
    return after != trusted.begin() && end <= std::prev(after)->end;
  }
};

absl::StatusOr<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  EncodeCall call;
  call.options = &options;
  if (options.parse_control_tokens) call.trust = EncodeCall::Trust::kAll;
  RETURN_IF_ERROR(check_length(text.size(), options));
  return run(&call, text);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::encode_spans(std::span<const TextSpan> spans,
                                                             const EncodeOptions& options) const {
  EncodeCall call;
  call.options = &options;
  call.trust = EncodeCall::Trust::kMixed;
  size_t total = 0;
  for (const TextSpan& span : spans) total += span.text.size();
  RETURN_IF_ERROR(check_length(total, options));
  std::string text;
  text.reserve(total);
  for (const TextSpan& span : spans) {
    const auto begin = static_cast<uint32_t>(text.size());
    text.append(span.text);
    const auto end = static_cast<uint32_t>(text.size());
    if (!span.trusted || begin == end) continue;
    if (!call.trusted.empty() && call.trusted.back().end == begin) {
      call.trusted.back().end = end;
    } else {
      call.trusted.push_back({begin, end});
    }
  }
  return run(&call, text);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::run(EncodeCall* call, std::string_view text) const {
  const PostProcessor& around = post_processor_;
  if (call->options->add_special_tokens) call->ids = around.prefix;
  const bool mixed = call->trust == EncodeCall::Trust::kMixed;
  const auto allow = [&](const AddedToken& token, size_t begin, size_t end) {
    if (!token.control) return true;
    return mixed ? call->covers(begin, end) : call->trust == EncodeCall::Trust::kAll;
  };
  for (const TextCut& cut : (mixed ? mixed_finder_ : raw_finder_).cut(text, allow)) {
    const TextRange range = cut.range;
    if (cut.token != nullptr) {
      call->ids.push_back(cut.token->id);
    } else {
      RETURN_IF_ERROR(
          encode_text(text.substr(range.begin, range.end - range.begin), range.begin == 0, call));
    }
  }
  if (call->options->add_special_tokens) {
    call->ids.insert(call->ids.end(), around.suffix.begin(), around.suffix.end());
  }
  return std::move(call->ids);
}

// Text without raw added tokens: normalizes it and cuts out those that are looked for afterwards.
absl::Status Tokenizer::encode_text(std::string_view text, bool at_text_start,
                                    EncodeCall* call) const {
  std::string normalized;
  if (!normalizer_.is_identity()) {
    ASSIGN_OR_RETURN(normalized, normalizer_.apply(std::string(text)));
    text = normalized;
  }
  if (normalized_finder_.empty()) return encode_plain(text, at_text_start, call);
  const auto allow = [&](const AddedToken& token, size_t, size_t) {
    return !token.control || call->trust == EncodeCall::Trust::kAll;
  };
  for (const TextCut& cut : normalized_finder_.cut(text, allow)) {
    const TextRange range = cut.range;
    if (cut.token != nullptr) {
      call->ids.push_back(cut.token->id);
    } else {
      RETURN_IF_ERROR(encode_plain(text.substr(range.begin, range.end - range.begin),
                                   at_text_start && range.begin == 0, call));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::encode_plain(std::string_view text, bool at_text_start,
                                     EncodeCall* call) const {
  PieceList list = make_pieces(std::string(text));
  RETURN_IF_ERROR(pre_tokenizer_.apply(at_text_start, &list));
  for (const Piece& piece : list.pieces) {
    const auto bytes = std::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
    RETURN_IF_ERROR(model_.encode(bytes, &call->scratch, &call->ids));
  }
  return absl::OkStatus();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string bytes;
  bool first = options.starts_text;
  for (const int32_t id : ids) {
    if (!is_token(id)) {
      bytes += "\xEF\xBF\xBD";
      first = false;
      continue;
    }
    if (options.skip_special && is_special(id)) continue;
    if (first && decoder_.first_differs()) {
      bytes += decoder_.bytes(tokens_[id].content, /*first_in_text=*/true);
    } else {
      bytes += tokens_[id].bytes;
    }
    first = false;
  }
  size_t strip = 0;
  if (options.starts_text) {
    while (strip < bytes.size() && strip < static_cast<size_t>(decoder_.strip_count()) &&
           bytes[strip] == decoder_.strip_character()) {
      ++strip;
    }
  }
  return replace_invalid_utf8(std::string_view(bytes).substr(strip));
}

bool Tokenizer::is_token(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[id].present;
}
const Tokenizer::Token& Tokenizer::token_or_blank(int32_t id) const {
  static const Token blank;
  return is_token(id) ? tokens_[id] : blank;
}
const std::string& Tokenizer::token_bytes(int32_t id) const { return token_or_blank(id).bytes; }
const std::string& Tokenizer::token_content(int32_t id) const {
  return token_or_blank(id).content;
}
bool Tokenizer::is_special(int32_t id) const { return token_or_blank(id).special; }
bool Tokenizer::is_control(int32_t id) const { return token_or_blank(id).control; }

std::optional<int32_t> Tokenizer::token_id(std::string_view content) const {
  const auto added = id_of_added_.find(absl::string_view(content.data(), content.size()));
  if (added != id_of_added_.end()) return added->second;
  return model_.token_id(content);
}

std::optional<int32_t> Tokenizer::first_difference(const Tokenizer& other) const {
  const size_t common = std::min(tokens_.size(), other.tokens_.size());
  for (size_t id = 0; id < common; ++id) {
    if (!(tokens_[id] == other.tokens_[id])) return static_cast<int32_t>(id);
  }
  if (tokens_.size() == other.tokens_.size()) return std::nullopt;
  return static_cast<int32_t>(common);
}

}  // namespace brigade::runtime
