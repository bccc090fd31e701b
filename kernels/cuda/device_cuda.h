// A GPU as a Device. One process may hold several; each is used as kernels/core/device.h says.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::kernels::cuda {

// Sentences of usable_device() when there is none; `options.threads` is not used.
absl::StatusOr<std::unique_ptr<Device>> create_device(const DeviceOptions& options);

}  // namespace brigade::kernels::cuda
