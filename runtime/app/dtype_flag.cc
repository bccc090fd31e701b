#include "runtime/app/dtype_flag.h"

#include "absl/strings/str_cat.h"

namespace brigade::runtime {

absl::StatusOr<kernels::DType> parse_dtype(const std::string& name, const char* flag) {
  for (const kernels::DType dtype :
       {kernels::DType::kF32, kernels::DType::kBF16, kernels::DType::kF16}) {
    if (name == kernels::dtype_name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", name, ": known are f32, bf16, f16"));
}

}  // namespace brigade::runtime
