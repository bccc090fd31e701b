#include "kernels/ops/math.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/half.h"
#include "tests/support/test_env.h"

namespace brigade::kernels {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Relative errors against long double, as the header promises them.
TEST(Math, ExpAndLogKeepTheirPromises) {
  std::mt19937_64 random(tests::test_seed());
  std::uniform_real_distribution<double> wide(-708, 709), narrow(-87, 88), near_one(0.5, 1.5);
  for (int i = 0; i < tests::scaled(100000, 10000); ++i) {
    const double x = wide(random);
    const long double exact = std::exp(static_cast<long double>(x));
    ASSERT_LT(std::fabs((exp_f64(x) - exact) / exact), 1e-15L) << x;
    const float y = static_cast<float>(narrow(random));
    const long double exact_y = std::exp(static_cast<long double>(y));
    ASSERT_LT(std::fabs((exp_f32(y) - exact_y) / exact_y), 4e-7L) << y;
    for (const double z : {static_cast<double>(exact), near_one(random)}) {
      const long double exact_log = std::log(static_cast<long double>(z));
      ASSERT_LE(std::fabs(log_f64(z) - exact_log), 1e-15L * std::fabs(exact_log)) << z;
    }
  }
}

TEST(Math, SinAndCosUpToTwoToTheThirty) {
  std::mt19937_64 random(tests::test_seed());
  std::uniform_real_distribution<double> wide(-1073741824.0, 1073741824.0), near(-10, 10);
  for (int i = 0; i < tests::scaled(100000, 10000); ++i) {
    for (const double x : {wide(random), near(random)}) {
      ASSERT_LT(std::fabs(sin_f64(x) - std::sin(static_cast<long double>(x))), 2.3e-16L) << x;
      ASSERT_LT(std::fabs(cos_f64(x) - std::cos(static_cast<long double>(x))), 2.3e-16L) << x;
    }
  }
}

TEST(Math, EdgesAreDefined) {
  EXPECT_EQ(exp_f32(0), 1.0f);
  EXPECT_EQ(exp_f32(-87.5f), 0.0f);
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(exp_f32(88.5f), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(exp_f32(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_EQ(exp_f64(0), 1.0);
  EXPECT_EQ(exp_f64(-kInf), 0.0);
  EXPECT_EQ(exp_f64(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp_f64(std::nan(""))));
  EXPECT_EQ(log_f64(1), 0.0);
  EXPECT_EQ(log_f64(0), -kInf);
  EXPECT_EQ(log_f64(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f64(-1)));
  EXPECT_NEAR(log_f64(5e-324), -744.4400719213812, 1e-12);
  EXPECT_EQ(sin_f64(0), 0.0);
  EXPECT_EQ(cos_f64(0), 1.0);
}

TEST(Math, RopeTablesHoldPositionTimesFrequency) {
  const double frequencies[3] = {1.0, 0.01, 1e-4};
  std::vector<float> cos_table(8192 * 3), sin_table(8192 * 3);
  fill_rope_tables(frequencies, 3, 8192, 1.25, cos_table.data(), sin_table.data());
  for (int position : {0, 1, 11, 4095, 8191}) {
    for (int i = 0; i < 3; ++i) {
      const double angle = position * frequencies[i];
      EXPECT_FLOAT_EQ(cos_table[position * 3 + i], 1.25 * std::cos(angle));
      EXPECT_FLOAT_EQ(sin_table[position * 3 + i], 1.25 * std::sin(angle));
    }
  }
}

TEST(Half, EveryF16SurvivesTheWayThroughF32) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      ASSERT_EQ(f32_to_f16(value), half) << bits;
    }
    const float brain = bf16_to_f32(half);
    ASSERT_TRUE(std::isnan(brain) || f32_to_bf16(brain) == half) << bits;
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3F80);  // half way: to even, down
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3F82);  // half way: to even, up
  EXPECT_EQ(f32_to_f16(1.00048828125f), 0x3C00);
  EXPECT_EQ(f32_to_f16(1.00146484375f), 0x3C02);
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(2.98023223876953125e-8f), 0x0000);  // half the smallest: to even
  EXPECT_EQ(f32_to_f16(3e-8f), 0x0001);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace brigade::kernels
