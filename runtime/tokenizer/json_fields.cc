#include "runtime/tokenizer/json_fields.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

using nlohmann::json;

absl::Status json_error(const std::string& where, const std::string& problem) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", problem));
}

absl::Status require_object(const json& value, const std::string& where) {
  return value.is_object() ? absl::OkStatus() : json_error(where, "must be an object");
}

absl::Status check_keys(const json& object, std::initializer_list<const char*> known,
                        const std::string& where) {
  for (const auto& entry : object.items()) {
    const bool found = std::any_of(known.begin(), known.end(), [&](const char* key) {
      return std::string_view(key) == entry.key();
    });
    if (!found) {
      return json_error(where, absl::StrCat("unknown key \"", entry.key().substr(0, 100), "\""));
    }
  }
  return absl::OkStatus();
}

const json* find_field(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::string> string_field(const json& object, const char* key,
                                         const std::string& where) {
  const json* value = find_field(object, key);
  if (value == nullptr || !value->is_string()) {
    return json_error(where, absl::StrCat("key \"", key, "\" must be a string"));
  }
  return value->get<std::string>();
}

absl::StatusOr<bool> bool_field(const json& object, const char* key, bool otherwise,
                                const std::string& where) {
  const json* value = find_field(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return json_error(where, absl::StrCat("key \"", key, "\" must be true or false"));
  }
  return value->get<bool>();
}

absl::StatusOr<int64_t> int_field(const json& object, const char* key, int64_t low, int64_t high,
                                  const std::string& where) {
  const json* value = find_field(object, key);
  const bool fits = value != nullptr && value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= INT64_MAX) &&
                    value->get<int64_t>() >= low && value->get<int64_t>() <= high;
  if (!fits) {
    return json_error(where, absl::StrCat("key \"", key, "\" must be an integer from ", low, " to ",
                                          high));
  }
  return value->get<int64_t>();
}

absl::StatusOr<const json*> array_field(const json& object, const char* key,
                                        const std::string& where) {
  const json* value = find_field(object, key);
  if (value == nullptr || !value->is_array()) {
    return json_error(where, absl::StrCat("key \"", key, "\" must be an array"));
  }
  return value;
}

}  // namespace brigade::runtime
