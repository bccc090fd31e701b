#include "runtime/model/config_object.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

using nlohmann::json;

std::string brief(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

ConfigObject::ConfigObject(const json& object, std::string where)
    : object_(object.is_object() ? &object : nullptr), where_(std::move(where)) {
  if (object_ == nullptr) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(where_, " is ", brief(object), " where an object was expected"));
  }
}

void ConfigObject::fail(const std::string& key, const std::string& what) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": ", key, " ", what));
  }
}

const json* ConfigObject::value(const std::string& key) {
  if (object_ == nullptr) return nullptr;
  read_.insert(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> ConfigObject::integer(const std::string& key, int64_t min, int64_t max) {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number_integer()) {
    fail(key, absl::StrCat("is ", brief(*found), ", not an integer"));
    return std::nullopt;
  }
  const bool too_large =
      found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{INT64_MAX};
  if (too_large || found->get<int64_t>() < min || found->get<int64_t>() > max) {
    fail(key, absl::StrCat("is ", brief(*found), ", outside ", min, " to ", max));
    return std::nullopt;
  }
  return found->get<int64_t>();
}

std::optional<double> ConfigObject::number(const std::string& key, double min, double max) {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number()) {
    fail(key, absl::StrCat("is ", brief(*found), ", not a number"));
    return std::nullopt;
  }
  const double number = found->get<double>();
  if (!(number >= min && number <= max)) {
    fail(key, absl::StrCat("is ", brief(*found), ", outside ", min, " to ", max));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> ConfigObject::boolean(const std::string& key) {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) {
    fail(key, absl::StrCat("is ", brief(*found), ", not true or false"));
    return std::nullopt;
  }
  return found->get<bool>();
}

std::optional<std::string> ConfigObject::text(const std::string& key) {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) {
    fail(key, absl::StrCat("is ", brief(*found), ", not a string"));
    return std::nullopt;
  }
  return found->get<std::string>();
}

std::vector<int64_t> ConfigObject::integers(const std::string& key, int64_t min, int64_t max) {
  constexpr size_t kMaxCount = 1024;
  const json* found = value(key);
  if (found == nullptr) return {};
  if (!found->is_array()) {
    const std::optional<int64_t> one = integer(key, min, max);
    return one ? std::vector<int64_t>{*one} : std::vector<int64_t>{};
  }
  if (found->size() > kMaxCount) {
    fail(key, absl::StrCat("lists ", found->size(), " numbers, limit is ", kMaxCount));
    return {};
  }
  std::vector<int64_t> numbers;
  for (const json& element : *found) {
    const bool fits =
        element.is_number_integer() &&
        !(element.is_number_unsigned() && element.get<uint64_t>() > uint64_t{INT64_MAX}) &&
        element.get<int64_t>() >= min && element.get<int64_t>() <= max;
    if (!fits) {
      fail(key, absl::StrCat("holds ", brief(element), ", not an integer from ", min, " to ", max));
      return {};
    }
    numbers.push_back(element.get<int64_t>());
  }
  return numbers;
}

int64_t ConfigObject::required_integer(const std::string& key, int64_t min, int64_t max) {
  if (value(key) == nullptr) {
    fail(key, "is missing");
    return min;
  }
  return integer(key, min, max).value_or(min);
}

const json* ConfigObject::object(const std::string& key) {
  const json* found = value(key);
  if (found == nullptr) return nullptr;
  if (!found->is_object()) {
    fail(key, absl::StrCat("is ", brief(*found), ", not an object"));
    return nullptr;
  }
  return found;
}

std::vector<std::string> ConfigObject::unread_keys() const {
  std::vector<std::string> keys;
  if (object_ == nullptr) return keys;
  for (const auto& [key, element] : object_->items()) {
    if (read_.count(key) == 0) keys.push_back(key);
  }
  return keys;
}

}  // namespace brigade::runtime
