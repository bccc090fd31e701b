#include "runtime/api/safe_text.h"

#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {

std::string safe_text(std::string_view bytes, size_t max_bytes) {
  std::string text;
  for (size_t position = 0; position < bytes.size();) {
    const Utf8Unit unit = decode_utf8(bytes, position);
    position += unit.length;
    const bool control = unit.valid &&
                         (unit.code < 0x20 || (unit.code >= 0x7F && unit.code < 0xA0)) &&
                         unit.code != '\t' && unit.code != '\n';
    std::string character;
    append_utf8(!unit.valid ? 0xFFFD : control ? ' ' : unit.code, &character);
    if (text.size() + character.size() > max_bytes) return text + "...";
    text += character;
  }
  return text;
}

}  // namespace brigade::runtime
