// Checks of fields that come off the wire: sizes and ranges, each failure naming its field. For the
// translation units of draft_wire.h only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime::wire {

inline absl::Status out_of(const char* field, int64_t value, int64_t low, int64_t high) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", must be from ", low, " to ", high));
}

inline absl::Status read(const char* field, int64_t value, int64_t high, int* out) {
  if (value < 0 || value > high) return out_of(field, value, 0, high);
  *out = static_cast<int>(value);
  return absl::OkStatus();
}

template <typename List>
absl::Status check_size(const char* field, const List& list, int64_t high) {
  const auto size = static_cast<int64_t>(list.size());
  if (size <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", size, " entries or bytes, limit is ", high));
}

template <typename List, typename Value>
absl::Status read_list(const char* field, const List& list, int64_t high, std::vector<Value>* out) {
  RETURN_IF_ERROR(check_size(field, list, high));
  out->assign(list.begin(), list.end());
  return absl::OkStatus();
}

}  // namespace brigade::runtime::wire
