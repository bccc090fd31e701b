// Random weights of every dtype for tests of CUDA kernels, packed as the device of a call keeps
// them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/ops/packed_matrix.h"
#include "tests/kernels/op_runner.h"
#include "tests/kernels_cuda/parity.h"

namespace brigade::tests {

inline constexpr kernels::DType kWeightDtypes[] = {kernels::DType::kF32, kernels::DType::kBF16,
                                                   kernels::DType::kF16};

// Over 20 powers of two, so that the order of additions shows.
inline std::vector<float> spread_floats(std::mt19937_64& random, size_t count) {
  std::vector<float> values = random_floats(random, count);
  for (float& value : values) value = std::ldexp(value, static_cast<int>(random() % 20) - 17);
  return values;
}

// Terms of very different size show the order of additions. Terms of equal size give sums whose
// error a rounding of the terms bounds well.
enum class Spread { kWide, kNormal };

// A matrix [outputs, k]; upload() puts its packed form on the device of a call.
class TestWeights {
 public:
  TestWeights(std::mt19937_64& random, kernels::DType dtype, int64_t outputs, int64_t k,
              Spread spread = Spread::kWide)
      : dtype_(dtype), outputs_(outputs), k_(k) {
    const auto count = static_cast<size_t>(outputs * k);
    const float scale = 1 / std::sqrt(static_cast<float>(k));
    plain_ = encode(spread == Spread::kWide ? spread_floats(random, count)
                                            : random_floats(random, count, scale),
                    dtype);
  }
  // The gate and up projections of an expert in one matrix.
  static TestWeights gate_up(std::mt19937_64& random, kernels::DType dtype, int64_t ffn, int64_t k,
                             Spread spread = Spread::kWide) {
    TestWeights both(random, dtype, ffn, k, spread);
    both.up_ = TestWeights(random, dtype, ffn, k, spread).plain_;
    return both;
  }

  kernels::PackedMatrix upload(Tensors& tensors) const {
    const auto format =
        kernels::weight_format(dtype_, kernels::weight_layout(tensors.runner().device()));
    const size_t bytes = kernels::packed_bytes(format, outputs_, k_);
    std::vector<uint8_t> packed(up_.empty() ? bytes : 2 * bytes);
    if (up_.empty()) {
      kernels::pack_matrix(format, plain_.data(), outputs_, k_, packed.data());
      return {tensors.in(packed), format, outputs_, k_};
    }
    kernels::pack_gate_up(format, plain_.data(), up_.data(), outputs_, k_, packed.data());
    return {tensors.in(packed), format, kernels::gate_up_outputs(format, outputs_), k_};
  }
  // Widened, [outputs, k].
  std::vector<float> values() const {
    std::vector<float> values(static_cast<size_t>(outputs_ * k_));
    for (size_t i = 0; i < values.size(); ++i) values[i] = decode(dtype_, plain_.data(), i);
    return values;
  }

 private:
  static float decode(kernels::DType dtype, const uint8_t* bytes, size_t i) {
    uint32_t bits = 0;
    const size_t size = kernels::dtype_bytes(dtype);
    std::memcpy(&bits, bytes + i * size, size);
    if (dtype == kernels::DType::kBF16) return kernels::bf16_to_f32(bits);
    return dtype == kernels::DType::kF16 ? kernels::f16_to_f32(bits) : kernels::f32_of_bits(bits);
  }

  kernels::DType dtype_;
  int64_t outputs_, k_;
  std::vector<uint8_t> plain_, up_;
};

}  // namespace brigade::tests
