// The module's own device layer over the emulated runtime: allocations end where they end, what nobody
// wrote reads as 0xFF, and the host cannot touch device memory.
#include "kernels/cuda/device_cuda.h"
#include "tests/cuda_emulation/shim/kernel_run.h"
#include "tests/kernels_cuda/device_under_test.h"
#include "tests/support/test_env.h"

namespace brigade::tests {

absl::StatusOr<std::unique_ptr<kernels::Device>> create_device_under_test(kernels::CudaMath math) {
  return kernels::cuda::create_device({.kind = kernels::DeviceKind::kCuda, .cuda_math = math});
}

// First to last, last to first, and two that are shuffled; odd ones poison shared memory with large
// numbers, even ones with NaN. At a reduced scale one of either kind; under the address sanitizer,
// which is after bounds, one.
std::vector<uint64_t> thread_orders() {
  const uint64_t drawn = test_seed() % 100000 * 2 + 4;
#if defined(__SANITIZE_ADDRESS__)
  return {drawn + 1};
#else
  if (scaled(10) < 10) return {1, drawn};
  return {0, 1, drawn, drawn + 1};
#endif
}

void use_thread_order(uint64_t order) { cuda_emulation::set_schedule_seed(order); }

}  // namespace brigade::tests
