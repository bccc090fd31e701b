// What a key of config.json that the family's reader did not ask for means: known to change nothing
// at inference, known (or by its name likely) to change the maths, or unknown. Pure functions.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace brigade::runtime {

enum class KeyMeaning {
  kHarmless,      // training, bookkeeping, defaults of a tool
  kNeutral,       // could change the maths, but not with this value
  kChangesMaths,  // must be refused
  kUnknown        // listed once at load
};

KeyMeaning classify_config_key(const std::string& key, const nlohmann::json& value);

}  // namespace brigade::runtime
