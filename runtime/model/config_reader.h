// config.json and generation_config.json to ModelSpec. Families: llama, mixtral. A key that changes
// the maths and that we do not implement, an unknown family, rope type or activation is an error
// that names it; keys that nobody knows are listed in the notes. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_spec.h"

namespace brigade::runtime {

struct ConfigReading {
  ModelSpec spec;
  std::vector<std::string> notes;  // for the log, one line each
};

// Reads both files of a model folder; generation_config.json may be absent.
absl::StatusOr<ConfigReading> read_config(const std::string& folder);

// The same from parsed JSON; `name` starts every sentence. `generation` may be null.
absl::StatusOr<ConfigReading> read_config(const nlohmann::json& config,
                                          const nlohmann::json* generation,
                                          const std::string& name);

}  // namespace brigade::runtime
