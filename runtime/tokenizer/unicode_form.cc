#include "runtime/tokenizer/unicode_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "kernels/core/check.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

// No form changes these: all of ASCII, and for NFC everything below the combining marks.
bool is_unchanged(std::string_view text, UnicodeForm form) {
  const uint8_t limit = form == UnicodeForm::kNfc ? 0xCC : 0x80;  // U+0300 begins with CC
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return static_cast<uint8_t>(c) < limit; });
}

void append_decomposed(char32_t code, UnicodeForm form, CodePoints* out) {
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_int32_t parts[32];  // the longest decomposition in Unicode has 18
  int boundary = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts, 32,
                                             static_cast<utf8proc_option_t>(options), &boundary);
  CHECK(count >= 0 && count <= 32);
  out->insert(out->end(), parts, parts + count);
}

int combining_class(utf8proc_int32_t code) {
  return code < 0x300 ? 0 : utf8proc_get_property(code)->combining_class;
}

// Canonical ordering: each run of marks sorted by class, equal classes in their order.
void order_marks(CodePoints* points) {
  for (size_t i = 0; i < points->size();) {
    if (combining_class((*points)[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < points->size() && combining_class((*points)[end]) != 0) ++end;
    std::stable_sort(points->begin() + i, points->begin() + end, [](auto a, auto b) {
      return combining_class(a) < combining_class(b);
    });
    i = end;
  }
}

void append_form(CodePoints* points, UnicodeForm form, std::string* out) {
  order_marks(points);
  auto count = static_cast<utf8proc_ssize_t>(points->size());
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {
    count = utf8proc_normalize_utf32(
        points->data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    CHECK(count >= 0);
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8((*points)[i], out);
  points->clear();
}

}  // namespace

std::string normalize_unicode(std::string_view text, UnicodeForm form) {
  if (is_unchanged(text, form)) return std::string(text);
  std::string out;
  out.reserve(text.size());
  CodePoints points;
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = decode_utf8(text, i);
    if (unit.valid) {
      append_decomposed(unit.code, form, &points);
    } else {
      append_form(&points, form, &out);
      out.append(text.substr(i, unit.length));
    }
    i += unit.length;
  }
  append_form(&points, form, &out);
  return out;
}

}  // namespace brigade::runtime
