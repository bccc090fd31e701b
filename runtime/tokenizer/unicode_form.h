// Unicode normalization forms in O(n log n) on any input; the usual in-place reordering is quadratic
// on long runs of combining marks. Pure function, any thread.
#pragma once

#include <string>
#include <string_view>

namespace brigade::runtime {

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// `text` in `form` (UAX 15). Bytes that are not UTF-8 are copied and end a run of characters.
std::string normalize_unicode(std::string_view text, UnicodeForm form);

}  // namespace brigade::runtime
