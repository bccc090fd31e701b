// The start-up probe on CUDA gives the CPU's bits, piece by piece: its number decides who may serve
// together.
#include "gtest/gtest.h"
#include "kernels/ops/numerics_probe.h"
#include "tests/kernels_cuda/device_under_test.h"

namespace brigade::kernels {
namespace {

TEST(ProbeParity, EveryPieceHasTheBitsOfTheCpu) {
  const auto cpu = *Device::create(DeviceKind::kCpu, 1);
  const auto cuda = tests::create_device_under_test();
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  const auto expected = run_numerics_probe(*cpu), actual = run_numerics_probe(**cuda);
  ASSERT_TRUE(expected.ok() && actual.ok()) << actual.status();
  ASSERT_EQ(expected->size(), actual->size());
  for (size_t i = 0; i < expected->size(); ++i) {
    EXPECT_EQ((*expected)[i].name, (*actual)[i].name);
    EXPECT_TRUE((*expected)[i].bytes == (*actual)[i].bytes) << (*expected)[i].name;
  }
}

}  // namespace
}  // namespace brigade::kernels
