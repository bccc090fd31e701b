#include "runtime/tokenizer/post_processor.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "runtime/tokenizer/json_fields.h"

namespace brigade::runtime {
namespace {

constexpr size_t kMaxIds = 64;
constexpr int64_t kMaxId = INT32_MAX;

// Ids of special token `name` of a template.
absl::Status append_special(const nlohmann::json& value, const std::string& name,
                            const std::string& where, std::vector<int32_t>* ids) {
  const nlohmann::json* table = find_field(value, "special_tokens");
  const bool known = table != nullptr && table->is_object() && table->contains(name);
  if (!known) return json_error(where, absl::StrCat("special_tokens lacks \"", name, "\""));
  const std::string place = absl::StrCat(where, ".special_tokens[\"", name, "\"]");
  RETURN_IF_ERROR(require_object(table->at(name), place));
  ASSIGN_OR_RETURN(const nlohmann::json* list, array_field(table->at(name), "ids", place));
  for (const auto& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxId || ids->size() >= kMaxIds) {
      return json_error(place, absl::StrCat("ids must be at most ", kMaxIds, " token ids"));
    }
    ids->push_back(static_cast<int32_t>(id.get<uint64_t>()));
  }
  return absl::OkStatus();
}

// The "single" template: special tokens around one sequence A. "pair" is for two texts, which a
// generation request never has.
absl::Status add_template(const nlohmann::json& value, const std::string& where,
                          PostProcessor* out) {
  RETURN_IF_ERROR(check_keys(value, {"type", "single", "pair", "special_tokens"}, where));
  ASSIGN_OR_RETURN(const nlohmann::json* parts, array_field(value, "single", where));
  PostProcessor here;
  bool seen_text = false;
  for (size_t i = 0; i < parts->size(); ++i) {
    const nlohmann::json& part = (*parts)[i];
    const std::string place = absl::StrCat(where, ".single[", i, "]");
    RETURN_IF_ERROR(require_object(part, place));
    RETURN_IF_ERROR(check_keys(part, {"SpecialToken", "Sequence"}, place));
    const bool special = part.contains("SpecialToken");
    if (part.size() != 1) return json_error(place, "must be one SpecialToken or Sequence");
    const nlohmann::json& body = part.at(special ? "SpecialToken" : "Sequence");
    RETURN_IF_ERROR(require_object(body, place));
    ASSIGN_OR_RETURN(const std::string id, string_field(body, "id", place));
    if (special) {
      RETURN_IF_ERROR(append_special(value, id, where, seen_text ? &here.suffix : &here.prefix));
    } else if (id != "A" || seen_text) {
      return json_error(place, "a single text must appear once, as sequence A");
    } else {
      seen_text = true;
    }
  }
  if (!seen_text) return json_error(where, "key \"single\" has no sequence A");
  out->prefix.insert(out->prefix.begin(), here.prefix.begin(), here.prefix.end());
  out->suffix.insert(out->suffix.end(), here.suffix.begin(), here.suffix.end());
  return absl::OkStatus();
}

// Nesting is bounded by the JSON reader's depth limit.
absl::Status add(const nlohmann::json& value, const std::string& where, PostProcessor* out) {
  RETURN_IF_ERROR(require_object(value, where));
  ASSIGN_OR_RETURN(const std::string type, string_field(value, "type", where));
  if (type == "ByteLevel") {
    return check_keys(value, {"type", "add_prefix_space", "trim_offsets", "use_regex"}, where);
  }
  if (type == "TemplateProcessing") return add_template(value, where, out);
  if (type == "Sequence") {
    RETURN_IF_ERROR(check_keys(value, {"type", "processors"}, where));
    ASSIGN_OR_RETURN(const nlohmann::json* parts, array_field(value, "processors", where));
    if (parts->size() > kMaxIds) return json_error(where, "too many processors");
    for (size_t i = 0; i < parts->size(); ++i) {
      RETURN_IF_ERROR(add((*parts)[i], absl::StrCat(where, ".processors[", i, "]"), out));
    }
    return absl::OkStatus();
  }
  return json_error(where, absl::StrCat("post-processor type \"", type, "\" is not supported"));
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::parse(const nlohmann::json& value,
                                                   const std::string& where) {
  PostProcessor out;
  if (!value.is_null()) RETURN_IF_ERROR(add(value, where, &out));
  return out;
}

}  // namespace brigade::runtime
