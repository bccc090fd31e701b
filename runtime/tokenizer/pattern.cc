#include "runtime/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/pattern_syntax.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
// Steps for one match attempt: a run of n spaces costs the known patterns about n.
constexpr size_t kBaseSteps = 10'000;
constexpr size_t kStepsPerByte = 32;
constexpr uint32_t kHeapKib = 64 << 10;
// Every repeat of a compiled group is stored apart, so a small text can ask for much memory.
constexpr size_t kMaxCompiledBytes = 1 << 20;

// Searches are cut into windows of start positions, and the clock is read between them.
constexpr size_t kFirstWindow = 256;
constexpr size_t kLastWindow = 64 << 10;
// The clock is also read after this many matches: fewer on long texts, where one may cost more.
size_t matches_per_clock_read(size_t bytes) {
  return std::clamp<size_t>((1 << 24) / (bytes + 1), 16, 256);
}

// What a thread needs to run any pattern: the match's bounds, backtracking state, limits.
struct Matcher {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* limits = pcre2_match_context_create(nullptr);

  Matcher() {
    CHECK(data != nullptr && limits != nullptr);
    pcre2_set_heap_limit(limits, kHeapKib);
  }
  ~Matcher() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
  }
};

Matcher& thread_matcher() {
  thread_local Matcher matcher;
  return matcher;
}

// Processor time of this thread that find_all may use: far above what any linear pattern takes. It
// runs from the first look at the clock, which short searches never take.
class TimeBudget {
 public:
  explicit TimeBudget(size_t text_bytes) : allowed_(1.0 + 2e-6 * text_bytes) {}
  bool used_up() {
    if (end_ == 0) end_ = now() + allowed_;
    return now() > end_;
  }

 private:
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
  }
  double allowed_;
  double end_ = 0;
};

absl::Status gave_up(size_t bytes, const std::string& reason) {
  return absl::ResourceExhaustedError(
      absl::StrCat("pattern gave up on ", bytes, " bytes of text: ", reason));
}

size_t character_start(std::string_view text, size_t at) {
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at;
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

void Pattern::FreeCode::operator()(pcre2_code* code) const { pcre2_code_free(code); }

absl::StatusOr<Pattern> Pattern::compile(std::string_view source) {
  if (source.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("pattern of ", source.size(),
                                                   " bytes, limit is ", kMaxPatternBytes));
  }
  ASSIGN_OR_RETURN(const std::string text, translate_pattern(source));
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Multi-line ^ and $ are Ruby's; UCP makes case folding and properties Unicode's.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C |
                           PCRE2_USE_OFFSET_LIMIT;
  Pattern pattern;
  pattern.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options,
                                    &error, &offset, nullptr));
  if (pattern.code_ == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pattern does not compile: ", pcre2_message(error)));
  }
  size_t compiled_bytes = 0;
  pcre2_pattern_info(pattern.code_.get(), PCRE2_INFO_SIZE, &compiled_bytes);
  if (compiled_bytes > kMaxCompiledBytes) {
    return absl::InvalidArgumentError(absl::StrCat("pattern compiles to ", compiled_bytes,
                                                   " bytes, limit is ", kMaxCompiledBytes));
  }
  // Machine code when the host allows it; the interpreter gives the same matches.
  (void)pcre2_jit_compile(pattern.code_.get(), PCRE2_JIT_COMPLETE);
  return pattern;
}

absl::StatusOr<Pattern> Pattern::parse(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  RETURN_IF_ERROR(check_keys(value, {"Regex", "String"}, where));
  const bool literal = value.contains("String");
  if (value.size() != 1) return json_error(where, "must hold one of \"Regex\" and \"String\"");
  ASSIGN_OR_RETURN(const std::string text, string_field(value, literal ? "String" : "Regex", where));
  if (text.empty()) return json_error(where, "empty pattern");
  auto pattern = compile(literal ? quote_pattern(text) : text);
  if (!pattern.ok()) return json_error(where, std::string(pattern.status().message()));
  return pattern;
}

int Pattern::match(std::string_view text, size_t at, size_t last_start) const {
  Matcher& matcher = thread_matcher();
  pcre2_set_offset_limit(matcher.limits, last_start);
  const auto run = [&](uint32_t options) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NO_UTF_CHECK | options, matcher.data, matcher.limits);
  };
  const int found = run(0);
  // The interpreter keeps on the heap what did not fit the stack of the machine code.
  return found == PCRE2_ERROR_JIT_STACKLIMIT ? run(PCRE2_NO_JIT) : found;
}

absl::Status Pattern::find_all(std::string_view text, std::vector<TextRange>* matches) const {
  TimeBudget budget(text.size());
  const size_t steps = std::min<size_t>(kBaseSteps + kStepsPerByte * text.size(), UINT32_MAX);
  pcre2_set_match_limit(thread_matcher().limits, static_cast<uint32_t>(steps));
  const size_t clock_period = matches_per_clock_read(text.size());
  size_t window = kFirstWindow;
  size_t calls = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t last_start = std::min(at + window, text.size());
    const int found = match(text, at, last_start);
    const bool read_clock = found == PCRE2_ERROR_NOMATCH || ++calls % clock_period == 0;
    if (read_clock && last_start < text.size() && budget.used_up()) {
      return gave_up(text.size(), "too much backtracking");
    }
    if (found == PCRE2_ERROR_NOMATCH) {
      if (last_start == text.size()) break;
      at = character_start(text, last_start);  // tried above already, unless inside a character
      window = std::min(2 * window, kLastWindow);
      continue;
    }
    if (found < 0) return gave_up(text.size(), pcre2_message(found));
    const size_t* bounds = pcre2_get_ovector_pointer(thread_matcher().data);
    matches->push_back({static_cast<uint32_t>(bounds[0]), static_cast<uint32_t>(bounds[1])});
    at = bounds[1];
    if (bounds[0] == bounds[1] && at < text.size()) at += decode_utf8(text, at).length;
    window = kFirstWindow;
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
