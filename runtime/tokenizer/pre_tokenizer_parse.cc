// Reading of a pre-tokenizer from JSON; what its steps do is in pre_tokenizer.cc.
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxSteps = 64;
// What ByteLevel splits by when use_regex is set: the GPT-2 pattern.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::parse(const nlohmann::json& value,
                                                 const std::string& where) {
  PreTokenizer pre_tokenizer;
  if (!value.is_null()) RETURN_IF_ERROR(pre_tokenizer.add_steps(value, where));
  return pre_tokenizer;
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::behavior_field(const nlohmann::json& value,
                                                                    const std::string& where) {
  ASSIGN_OR_RETURN(const std::string name, string_field(value, "behavior", where));
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return json_error(where, absl::StrCat("split behavior \"", name, "\" is not supported"));
}

absl::Status PreTokenizer::add_split(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(value, {"type", "pattern", "behavior", "invert"}, where));
  const nlohmann::json* source = find_field(value, "pattern");
  if (source == nullptr) return json_error(where, "key \"pattern\" is missing");
  ASSIGN_OR_RETURN(Pattern pattern, Pattern::parse(*source, absl::StrCat(where, ".pattern")));
  ASSIGN_OR_RETURN(const Behavior behavior, behavior_field(value, where));
  ASSIGN_OR_RETURN(const bool invert, bool_field(value, "invert", false, where));
  steps_.emplace_back(Split{std::move(pattern), behavior, invert});
  return absl::OkStatus();
}

absl::Status PreTokenizer::add_byte_level(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(
      check_keys(value, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where));
  ByteLevel step;
  ASSIGN_OR_RETURN(step.add_prefix_space, bool_field(value, "add_prefix_space", true, where));
  ASSIGN_OR_RETURN(const bool use_regex, bool_field(value, "use_regex", true, where));
  if (use_regex) {
    ASSIGN_OR_RETURN(Pattern pattern, Pattern::compile(kGpt2Pattern));
    step.pattern.push_back(std::move(pattern));
  }
  steps_.emplace_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::add_metaspace(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(check_keys(
      value, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"},
      where));
  Metaspace step;
  ASSIGN_OR_RETURN(step.replacement, string_field(value, "replacement", where));
  if (step.replacement.empty() || step.replacement.size() > 4 || step.replacement == " ") {
    return json_error(where, "key \"replacement\" must be one character other than a space");
  }
  ASSIGN_OR_RETURN(const bool add_prefix, bool_field(value, "add_prefix_space", true, where));
  ASSIGN_OR_RETURN(step.split, bool_field(value, "split", true, where));
  std::string scheme = add_prefix ? "always" : "never";
  if (find_field(value, "prepend_scheme") != nullptr) {
    ASSIGN_OR_RETURN(scheme, string_field(value, "prepend_scheme", where));
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return json_error(where, absl::StrCat("prepend_scheme \"", scheme, "\" is not supported"));
  }
  step.prepend_always = scheme == "always";
  step.prepend_first = scheme == "first";
  steps_.emplace_back(std::move(step));
  return absl::OkStatus();
}

// Nesting is bounded by the JSON reader's depth limit.
absl::Status PreTokenizer::add_steps(const nlohmann::json& value, const std::string& where) {
  RETURN_IF_ERROR(require_object(value, where));
  ASSIGN_OR_RETURN(const std::string type, string_field(value, "type", where));
  if (steps_.size() >= kMaxSteps) return json_error(where, "too many pre-tokenizers");
  if (type == "Sequence") {
    RETURN_IF_ERROR(check_keys(value, {"type", "pretokenizers"}, where));
    ASSIGN_OR_RETURN(const nlohmann::json* parts, array_field(value, "pretokenizers", where));
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(add_steps((*parts)[i], absl::StrCat(where, ".pretokenizers[", i, "]")));
    }
    return absl::OkStatus();
  }
  if (type == "Split") return add_split(value, where);
  if (type == "ByteLevel") return add_byte_level(value, where);
  if (type == "Metaspace") return add_metaspace(value, where);
  if (type == "Digits") {
    RETURN_IF_ERROR(check_keys(value, {"type", "individual_digits"}, where));
    ASSIGN_OR_RETURN(const bool single, bool_field(value, "individual_digits", false, where));
    steps_.emplace_back(CharacterSplit{
        is_unicode_number, single ? Behavior::kIsolated : Behavior::kContiguous});
    return absl::OkStatus();
  }
  if (type == "Punctuation") {
    RETURN_IF_ERROR(check_keys(value, {"type", "behavior"}, where));
    Behavior behavior = Behavior::kIsolated;
    if (value.contains("behavior")) {
      ASSIGN_OR_RETURN(behavior, behavior_field(value, where));
    }
    steps_.emplace_back(CharacterSplit{is_unicode_punctuation, behavior});
    return absl::OkStatus();
  }
  return json_error(where, absl::StrCat("pre-tokenizer type \"", type, "\" is not supported"));
}

}  // namespace brigade::runtime
