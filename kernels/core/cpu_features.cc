#include "kernels/core/cpu_features.h"

namespace brigade::kernels {

absl::Status check_cpu() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool fits = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  if (!fits) {
    return absl::FailedPreconditionError(
        "this processor lacks AVX2, FMA, F16C or BMI2, which the CPU kernels need");
  }
#endif
  return absl::OkStatus();
}

}  // namespace brigade::kernels
