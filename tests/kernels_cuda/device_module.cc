// The parity checks on a GPU: brigade_cuda.so beside the binary, or what BRIGADE_CUDA_MODULE names.
// A program of its own, without RPC or models: it runs where the rest may not. Draws fresh inputs
// unless BRIGADE_TEST_SEED is set; ends with 3 and a sentence where there is no GPU.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/kernels_cuda/device_under_test.h"

namespace brigade::tests {

absl::StatusOr<std::unique_ptr<kernels::Device>> create_device_under_test(kernels::CudaMath math) {
  const char* module = std::getenv("BRIGADE_CUDA_MODULE");
  return kernels::Device::create({.kind = kernels::DeviceKind::kCuda,
                                  .cuda_module = module == nullptr ? "" : module,
                                  .cuda_math = math});
}

std::vector<uint64_t> thread_orders() { return {0}; }

void use_thread_order(uint64_t) {}

}  // namespace brigade::tests

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto device = brigade::tests::create_device_under_test();
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
    return 3;
  }
  setenv("BRIGADE_TEST_SEED", std::to_string(std::random_device()()).c_str(), /*overwrite=*/0);
  std::printf("%s, BRIGADE_TEST_SEED=%s\n", (*device)->name().c_str(),
              std::getenv("BRIGADE_TEST_SEED"));
  return RUN_ALL_TESTS();
}
