// Typed, named reading of JSON objects: each getter fails with a sentence that names the place, the key
// and what was expected; check_keys refuses keys nobody reads. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace brigade::runtime {

// `where` is the path of `object` in its file, such as "pre_tokenizer.pretokenizers[1]".
absl::Status json_error(const std::string& where, const std::string& problem);

absl::Status require_object(const nlohmann::json& value, const std::string& where);

// INVALID_ARGUMENT naming the first key of `object` that is not in `known`.
absl::Status check_keys(const nlohmann::json& object, std::initializer_list<const char*> known,
                        const std::string& where);

// The value of `key`, or nullptr when it is missing or null.
const nlohmann::json* find_field(const nlohmann::json& object, const char* key);

absl::StatusOr<std::string> string_field(const nlohmann::json& object, const char* key,
                                         const std::string& where);
absl::StatusOr<bool> bool_field(const nlohmann::json& object, const char* key, bool otherwise,
                                const std::string& where);
// An integer in [low, high].
absl::StatusOr<int64_t> int_field(const nlohmann::json& object, const char* key, int64_t low,
                                  int64_t high, const std::string& where);
// The value of `key`, which must be an array.
absl::StatusOr<const nlohmann::json*> array_field(const nlohmann::json& object, const char* key,
                                                  const std::string& where);

}  // namespace brigade::runtime
