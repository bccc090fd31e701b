// Which GPUs this process can use, asked once. Any thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device_cuda.h"

namespace brigade::kernels::cuda {

// FAILED_PRECONDITION with one sentence when there is no driver, one that is too old, or no GPU.
absl::StatusOr<std::vector<CudaDeviceInfo>> devices();

// The one device, or FAILED_PRECONDITION naming how many there are, or what it lacks.
absl::StatusOr<CudaDeviceInfo> usable_device(int ordinal);

}  // namespace brigade::kernels::cuda
