#include "runtime/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/pattern_syntax.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxPatternBytes = 16 << 10;
// Per match attempt. A run of n spaces costs about n steps, so 1 MB of text stays far below.
constexpr uint32_t kMatchSteps = 100'000'000;
constexpr uint32_t kHeapKib = 64 << 10;
// Every repeat of a compiled group is stored apart, so a small text can ask for much memory.
constexpr size_t kMaxCompiledBytes = 1 << 20;

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// Reused by all patterns of a thread: it only receives the match's bounds and the backtracking state.
pcre2_match_data* thread_match_data() {
  thread_local std::unique_ptr<pcre2_match_data, FreeMatchData> data(
      pcre2_match_data_create(1, nullptr));
  CHECK(data != nullptr);
  return data.get();
}

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

void Pattern::FreeCode::operator()(pcre2_code* code) const { pcre2_code_free(code); }
void Pattern::FreeContext::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}

absl::StatusOr<Pattern> Pattern::compile(std::string_view source) {
  if (source.size() > kMaxPatternBytes) {
    return absl::InvalidArgumentError(absl::StrCat("pattern of ", source.size(),
                                                   " bytes, limit is ", kMaxPatternBytes));
  }
  ASSIGN_OR_RETURN(const std::string text, translate_pattern(source));
  int error = 0;
  PCRE2_SIZE offset = 0;
  // Multi-line ^ and $ are Ruby's; UCP makes case folding and properties Unicode's.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
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
  pattern.limits_.reset(pcre2_match_context_create(nullptr));
  CHECK(pattern.limits_ != nullptr);
  pcre2_set_match_limit(pattern.limits_.get(), kMatchSteps);
  pcre2_set_heap_limit(pattern.limits_.get(), kHeapKib);
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

absl::Status Pattern::find_all(std::string_view text, std::vector<TextRange>* matches) const {
  pcre2_match_data* data = thread_match_data();
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t at = 0; at < text.size();) {
    int found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK, data,
                            limits_.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps this state on the heap
      found = pcre2_match(code_.get(), subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          data, limits_.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("pattern gave up on ", text.size(), " bytes of text: ", pcre2_message(found)));
    }
    const size_t* bounds = pcre2_get_ovector_pointer(data);
    matches->push_back({static_cast<uint32_t>(bounds[0]), static_cast<uint32_t>(bounds[1])});
    at = bounds[1];
    if (bounds[0] == bounds[1] && at < text.size()) at += decode_utf8(text, at).length;
  }
  return absl::OkStatus();
}

}  // namespace brigade::runtime
