// Names of dtypes as flags take them. Pure function.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/dtype.h"

namespace brigade::runtime {

// INVALID_ARGUMENT names `flag`: known are f32, bf16, f16.
absl::StatusOr<kernels::DType> parse_dtype(const std::string& name, const char* flag);

}  // namespace brigade::runtime
