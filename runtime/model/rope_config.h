// The rope settings of config.json, which have three spellings: `rope_theta` with `rope_scaling`
// {type | rope_type}, and `rope_parameters` with everything inside. Pure functions.
#pragma once

#include "absl/status/statusor.h"
#include "runtime/model/config_object.h"
#include "runtime/model/model_spec.h"

namespace brigade::runtime {

// Types: default (or none) and llama3. INVALID_ARGUMENT names any other type, a missing or unknown
// key, and two spellings that disagree. `default_theta` is the family's.
absl::StatusOr<RopeSpec> read_rope(ConfigObject& config, int head_dim, double default_theta);

}  // namespace brigade::runtime
