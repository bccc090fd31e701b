// The CUDA device that the parity tests hold against the CPU: emulated here, a real one where the
// binary is linked with another implementation. Test thread only.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::tests {

absl::StatusOr<std::unique_ptr<kernels::Device>> create_device_under_test(
    kernels::CudaMath math = kernels::CudaMath::kIdentical);

// Orders in which the emulation can run the threads of a launch; {0} where there is no choice.
std::vector<uint64_t> thread_orders();
void use_thread_order(uint64_t order);

}  // namespace brigade::tests
