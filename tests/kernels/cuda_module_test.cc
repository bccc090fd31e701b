// The module that nvcc built: it opens, and on a machine without a driver it says so in one
// sentence and leaves the CPU devices usable.
#include <dlfcn.h>

#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/device.h"
#include "kernels/core/device_cuda.h"

namespace brigade::kernels {
namespace {

using ::testing::HasSubstr;

bool has_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

DeviceOptions cuda(int ordinal) {
  DeviceOptions options;
  options.kind = DeviceKind::kCuda;
  options.ordinal = ordinal;
  options.cuda_module = BRIGADE_CUDA_MODULE;
  return options;
}

TEST(CudaModule, OpensAndFitsTheBinary) {
  const auto open = open_cuda_module(BRIGADE_CUDA_MODULE);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->module->layout, kCudaModuleLayout);
}

TEST(CudaModule, SaysThatThereIsNoDriver) {
  if (has_driver()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  for (int attempt = 0; attempt < 2; ++attempt) {  // the answer stays
    const absl::Status status = Device::create(cuda(0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(std::string(status.message()),
              "no NVIDIA driver on this machine; use --device cpu, or a machine with a GPU");
  }
  const auto found = open_cuda_module(BRIGADE_CUDA_MODULE)->module->devices();
  EXPECT_EQ(found.status().code(), absl::StatusCode::kFailedPrecondition);
  const auto cpu = Device::create(DeviceKind::kCpu, 1);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_TRUE(Buffer::allocate(**cpu, 1024).ok());
}

TEST(CudaModule, WithADriverCopiesOrSaysWhatIsMissing) {
  if (!has_driver()) GTEST_SKIP() << "this machine has no NVIDIA driver";
  const auto device = Device::create(cuda(0));
  if (!device.ok()) {
    EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition) << device.status();
    return;
  }
  const auto stream = (*device)->create_stream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  const auto buffer = Buffer::allocate(**device, sizeof(int));
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  const int sent = 41;
  int received = 0;
  ASSERT_TRUE((*stream)->copy_to_device(buffer->data(), &sent, sizeof(int)).ok());
  ASSERT_TRUE((*stream)->copy_to_host(&received, buffer->data(), sizeof(int)).ok());
  const absl::Status end = (*stream)->synchronize(absl::Now() + absl::Seconds(30));
  ASSERT_TRUE(end.ok()) << end;
  EXPECT_EQ(received, sent);
  const absl::Status far = Device::create(cuda(1000)).status();
  EXPECT_THAT(std::string(far.message()), HasSubstr("cuda:1000"));
}

}  // namespace
}  // namespace brigade::kernels
