#include "runtime/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

absl::Status find_characters(bool (*matches)(char32_t), std::string_view text,
                             std::vector<TextRange>* found) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = decode_utf8(text, i);
    if (matches(unit.code)) {
      found->push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i + unit.length)});
    }
    i += unit.length;
  }
  return absl::OkStatus();
}

// Builds a list whose pieces are the old ones after `rewrite(index, old bytes, &out)`.
template <typename Rewrite>
absl::Status rewrite_pieces(const Rewrite& rewrite, PieceList* list) {
  PieceList next;
  next.text.reserve(2 * list->text.size());
  next.pieces.reserve(list->pieces.size());
  for (size_t i = 0; i < list->pieces.size(); ++i) {
    Piece piece = list->pieces[i];
    const auto bytes = std::string_view(list->text).substr(piece.begin, piece.end - piece.begin);
    piece.begin = static_cast<uint32_t>(next.text.size());
    piece.opaque = rewrite(i, bytes, &next.text) && piece.opaque;
    if (next.text.size() > std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError("pre_tokenizer: the text grows past 4 GiB");
    }
    piece.end = static_cast<uint32_t>(next.text.size());
    next.pieces.push_back(piece);
  }
  *list = std::move(next);
  return absl::OkStatus();
}

}  // namespace

PieceList make_pieces(std::string text) {
  PieceList list;
  list.text = std::move(text);
  for (size_t i = 0; i < list.text.size();) {
    const Utf8Unit unit = decode_utf8(list.text, i);
    if (list.pieces.empty() || list.pieces.back().opaque == unit.valid) {
      list.pieces.push_back({static_cast<uint32_t>(i), static_cast<uint32_t>(i), !unit.valid});
    }
    i += unit.length;
    list.pieces.back().end = static_cast<uint32_t>(i);
  }
  return list;
}

// What becomes of the matches. Adjacent spans cover the piece; empty ones leave no piece.
void PreTokenizer::apply_behavior(const std::vector<Span>& spans, Behavior behavior,
                                  uint32_t offset, std::vector<Piece>* out) {
  const size_t first = out->size();
  for (size_t i = 0; i < spans.size(); ++i) {
    const bool was_match = i > 0 && spans[i - 1].is_match;
    const bool is_match = spans[i].is_match;
    bool glue = false;
    switch (behavior) {
      case Behavior::kIsolated: break;
      case Behavior::kRemoved:
        if (is_match) continue;
        break;
      case Behavior::kMergedWithPrevious: glue = is_match && !was_match; break;
      case Behavior::kContiguous: glue = i > 0 && is_match == was_match; break;
      case Behavior::kMergedWithNext:
        // Only the last match of a row of matches takes the text after it.
        glue = was_match && !is_match;
        break;
    }
    const TextRange& range = spans[i].range;
    if (glue && out->size() > first) {
      out->back().end = offset + range.end;
    } else {
      out->push_back({offset + range.begin, offset + range.end, false});
    }
  }
  const auto empty = [](const Piece& piece) { return piece.begin == piece.end; };
  out->erase(std::remove_if(out->begin() + first, out->end(), empty), out->end());
}

template <typename Find>
absl::Status PreTokenizer::split(const Find& find, Behavior behavior, bool invert,
                                 PieceList* list) {
  std::vector<Piece> next;
  next.reserve(list->pieces.size());
  std::vector<TextRange> matches;
  std::vector<Span> spans;
  for (const Piece& piece : list->pieces) {
    if (piece.opaque) {
      next.push_back(piece);
      continue;
    }
    matches.clear();
    spans.clear();
    const uint32_t size = piece.end - piece.begin;
    RETURN_IF_ERROR(find(std::string_view(list->text).substr(piece.begin, size), &matches));
    uint32_t covered = 0;
    for (const TextRange& match : matches) {
      if (match.begin > covered) spans.push_back({{covered, match.begin}, invert});
      spans.push_back({match, !invert});
      covered = match.end;
    }
    if (covered < size) spans.push_back({{covered, size}, invert});
    apply_behavior(spans, behavior, piece.begin, &next);
  }
  list->pieces = std::move(next);
  return absl::OkStatus();
}

absl::Status PreTokenizer::apply_byte_level(const ByteLevel& step, PieceList* list) {
  if (step.add_prefix_space) {
    RETURN_IF_ERROR(rewrite_pieces(
        [](size_t, std::string_view bytes, std::string* out) {
          if (bytes.empty() || bytes[0] != ' ') out->push_back(' ');
          out->append(bytes);
          return true;
        },
        list));
  }
  if (!step.pattern.empty()) {
    const auto find = [&](std::string_view text, std::vector<TextRange>* matches) {
      return step.pattern[0].find_all(text, matches);
    };
    RETURN_IF_ERROR(split(find, Behavior::kIsolated, false, list));
  }
  return rewrite_pieces(
      [](size_t, std::string_view bytes, std::string* out) {
        for (const char c : bytes) out->append(byte_character(static_cast<uint8_t>(c)));
        return false;  // the alphabet is valid UTF-8
      },
      list);
}

absl::Status PreTokenizer::apply_metaspace(const Metaspace& step, bool at_text_start,
                                           PieceList* list) {
  const std::string& mark = step.replacement;
  RETURN_IF_ERROR(rewrite_pieces(
      [&](size_t index, std::string_view bytes, std::string* out) {
        const size_t start = out->size();
        const bool first = step.prepend_first && at_text_start && index == 0;
        const bool has_mark = bytes.substr(0, mark.size()) == mark || bytes.substr(0, 1) == " ";
        if ((step.prepend_always || first) && !has_mark) out->append(mark);
        for (const char c : bytes) c == ' ' ? out->append(mark) : out->append(1, c);
        return out->size() > start;
      },
      list));
  if (!step.split) return absl::OkStatus();
  const auto find = [&](std::string_view text, std::vector<TextRange>* matches) {
    for (size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + mark.size())) {
      matches->push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + mark.size())});
    }
    return absl::OkStatus();
  };
  return split(find, Behavior::kMergedWithNext, false, list);
}

absl::Status PreTokenizer::apply(bool at_text_start, PieceList* list) const {
  for (const Step& step : steps_) {
    if (const auto* by_pattern = std::get_if<Split>(&step)) {
      const auto find = [&](std::string_view text, std::vector<TextRange>* matches) {
        return by_pattern->pattern.find_all(text, matches);
      };
      RETURN_IF_ERROR(split(find, by_pattern->behavior, by_pattern->invert, list));
    } else if (const auto* by_class = std::get_if<CharacterSplit>(&step)) {
      const auto find = [&](std::string_view text, std::vector<TextRange>* matches) {
        return find_characters(by_class->matches, text, matches);
      };
      RETURN_IF_ERROR(split(find, by_class->behavior, false, list));
    } else if (const auto* byte_level = std::get_if<ByteLevel>(&step)) {
      RETURN_IF_ERROR(apply_byte_level(*byte_level, list));
    } else {
      RETURN_IF_ERROR(apply_metaspace(std::get<Metaspace>(step), at_text_start, list));
    }
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
