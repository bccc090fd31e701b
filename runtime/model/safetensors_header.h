// The header of a safetensors file as a stream of JSON events: only the one structure that the
// format allows is let in, value by value, so that hostile JSON (deep, huge, duplicated) ends at
// its first wrong byte instead of being stored. Used by safetensors.cc alone; no state outlives a
// call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace brigade::runtime {

struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;  // two, relative to the end of the header
};

// INVALID_ARGUMENT, prefixed with `file`, names the tensor and what is wrong with it.
absl::StatusOr<std::vector<HeaderEntry>> parse_safetensors_header(std::string_view json,
                                                                  const std::string& file);

}  // namespace brigade::runtime
