// What the CPU kernels need from the processor. Called by Device::create; any thread.
#pragma once

#include "absl/status/status.h"

namespace brigade::kernels {

// FAILED_PRECONDITION when this x86 processor (or the system) lacks AVX2, FMA or F16C: without fused
// multiply-add the numerics contract cannot hold.
absl::Status check_cpu();

}  // namespace brigade::kernels
