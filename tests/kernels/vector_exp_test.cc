// The vector exp gives the bits of the scalar one, on every instruction set.
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/ops/math.h"
#include "tests/support/test_env.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels/vector_exp_test.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/lanes16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::kernels::HWY_NAMESPACE {

void exp_of_16(const float* x, float* y) { store16(exp16(load16(x)), y); }

}  // namespace brigade::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::kernels {
HWY_EXPORT(exp_of_16);

namespace {

TEST(VectorExp, EqualsTheScalarBits) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::mt19937_64 random(tests::test_seed());
  std::uniform_real_distribution<float> wide(-95, 95);
  std::vector<float> x = {0, -0.0f, 88, -87, 88.1f, -87.1f, kInf, -kInf, std::nanf(""), 1e-30f};
  while (x.size() < size_t(16) * 4000) x.push_back(wide(random));
  for (const std::string& target : simd_targets()) {
    ASSERT_TRUE(force_simd_target(target));
    for (size_t i = 0; i < x.size(); i += 16) {
      float y[16];
      HWY_DYNAMIC_DISPATCH(exp_of_16)(x.data() + i, y);
      for (int lane = 0; lane < 16; ++lane) {
        const float expected = exp_f32(x[i + lane]);
        ASSERT_EQ(std::memcmp(&y[lane], &expected, sizeof(float)), 0)
            << target << ": exp(" << x[i + lane] << ") is " << y[lane] << ", not " << expected;
      }
    }
    force_simd_target("");
  }
}

}  // namespace
}  // namespace brigade::kernels
#endif  // HWY_ONCE
