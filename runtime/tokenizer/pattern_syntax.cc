#include "runtime/tokenizer/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

// White_Space as a list of ranges: PCRE2's own \s also takes U+180E, which Unicode moved to Cf.
constexpr char kSpaces[] =
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
// Oniguruma's word characters: letters, marks, digits, connectors, Latin-1's raised digits and
// fractions, circled and squared letters. PCRE2's own \w leaves marks and more out.
constexpr char kWord[] =
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\xb2\\xb3\\xb9\\xbc-\\xbe\\x{24b6}-\\x{24e9}"
    "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> run() {
    while (at_ < in_.size()) RETURN_IF_ERROR(in_class_ ? step_in_class() : step());
    if (in_class_) return refuse("a class without its ]");
    return keep_linear();
  }

 private:
  absl::Status refuse(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("pattern uses ", what, " at offset ", at_,
                                                   ", which is not supported"));
  }
  bool starts_with(std::string_view text) const { return in_.substr(at_, text.size()) == text; }
  void copy(size_t count) {
    out_.append(in_.substr(at_, count));
    at_ += count;
  }

  // A search for \s+X that fails inside a run of spaces would be tried again from every later space
  // of the run, which is quadratic. If a match starts inside the run then one starts where the run
  // does, so only the run's first space, and the place where the last match ended, need trying.
  std::string keep_linear() const {
    if (in_.substr(0, 3) != "\\s+" || in_.find('|') != std::string_view::npos) return out_;
    return absl::StrCat("(?:\\G|(?<![", kSpaces, "]))", out_);
  }

  absl::Status step() {
    switch (in_[at_]) {
      case '\\': return escape();
      case '[':
        in_class_ = true;
        copy(starts_with("[^") ? 2 : 1);
        if (at_ < in_.size() && in_[at_] == ']') return refuse("] as the first of a class");
        return absl::OkStatus();
      case '(': return group();
      case '{': return count();
      default: copy(1); return absl::OkStatus();
    }
  }

  absl::Status step_in_class() {
    if (starts_with("&&")) return refuse("&& (class intersection)");
    switch (in_[at_]) {
      case '[': return refuse("a class inside a class");
      case ']': in_class_ = false; copy(1); return absl::OkStatus();
      case '\\': return escape();
      default: copy(1); return absl::OkStatus();
    }
  }

  absl::Status group() {
    if (!starts_with("(?")) return copy(1), absl::OkStatus();
    for (const char* known : {"(?:", "(?!", "(?=", "(?<!", "(?<=", "(?>", "(?i:"}) {
      const std::string_view text = known;
      if (starts_with(text)) return copy(text.size()), absl::OkStatus();
    }
    if (at_ == 0 && starts_with("(?i)")) return copy(4), absl::OkStatus();
    return refuse("group option (?");
  }

  // {n}, {n,}, {n,m}, {,m}. Ruby repeats {n,m}+ once more where PCRE2 makes it possessive.
  absl::Status count() {
    const size_t close = in_.find('}', at_);
    if (close == std::string_view::npos) return refuse("{ that opens no repeat count");
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    const bool digits = !inside.empty() && inside != "," &&
                        std::all_of(inside.begin(), inside.end(), [](char c) {
                          return c == ',' || std::isdigit(static_cast<unsigned char>(c));
                        });
    if (!digits) return refuse("{ that opens no repeat count");
    if (close + 1 < in_.size() && in_[close + 1] == '+') return refuse("a repeated repeat count }+");
    absl::StrAppend(&out_, "{", inside[0] == ',' ? "0" : "", std::string(inside), "}");
    at_ = close + 1;
    return absl::OkStatus();
  }

  void emit(std::string_view ranges, bool negated = false) {
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += ranges;
    if (!in_class_) out_ += ']';
    at_ += 2;
  }

  absl::Status escape() {
    if (at_ + 1 >= in_.size()) return refuse("\\ at its end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's': emit(kSpaces); return absl::OkStatus();
      case 'S':
        if (in_class_) return emit("\\S\\x{180e}"), absl::OkStatus();
        return emit(kSpaces, /*negated=*/true), absl::OkStatus();
      case 'w': emit(kWord); return absl::OkStatus();
      case 'W':
        if (in_class_) return refuse("\\W inside a class");
        return emit(kWord, /*negated=*/true), absl::OkStatus();
      case 'd': out_ += "\\p{Nd}"; at_ += 2; return absl::OkStatus();
      case 'D': out_ += "\\P{Nd}"; at_ += 2; return absl::OkStatus();
      case 'v': out_ += "\\x0b"; at_ += 2; return absl::OkStatus();
      case 'p': case 'P': return property();
      case 'u': return four_digits();
      case 'x': case 'n': case 'r': case 't': case 'f': case 'a': case 'e':
        copy(2);
        return absl::OkStatus();
      case 'A': case 'z':
        if (!in_class_) return copy(2), absl::OkStatus();
        break;
      default:
        if (!std::isalnum(static_cast<unsigned char>(c))) return copy(2), absl::OkStatus();
    }
    return refuse(absl::StrCat("\\", std::string(1, c)));
  }

  // General categories read the same in both engines. A longer name is a script here; PCRE2 would take
  // it as script extensions.
  absl::Status property() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos) {
      return refuse("\\p without {name}");
    }
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    const bool inverted = !name.empty() && name[0] == '^';
    if (inverted) name.remove_prefix(1);
    const bool plain = !name.empty() && name.size() < 40 &&
                       std::all_of(name.begin(), name.end(), [](char c) {
                         return c == '_' || std::isalnum(static_cast<unsigned char>(c));
                       });
    if (!plain) return refuse("a property name");
    absl::StrAppend(&out_, "\\", std::string(1, in_[at_ + 1]), "{", inverted ? "^" : "",
                    name.size() > 2 ? "sc:" : "", std::string(name), "}");
    at_ = close + 1;
    return absl::OkStatus();
  }

  absl::Status four_digits() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    const bool hex = digits.size() == 4 && std::all_of(digits.begin(), digits.end(), [](char c) {
                       return std::isxdigit(static_cast<unsigned char>(c));
                     });
    if (!hex) return refuse("\\u without four hex digits");
    absl::StrAppend(&out_, "\\x{", std::string(digits), "}");
    at_ += 6;
    return absl::OkStatus();
  }

  std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> translate_pattern(std::string_view pattern) {
  return Translator(pattern).run();
}

std::string quote_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::ispunct(static_cast<unsigned char>(c))) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace brigade::runtime
