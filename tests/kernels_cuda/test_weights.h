// Random weights of every dtype, packed as a device stores them, for the parity tests.
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

// A matrix [outputs, k]; upload() puts its packed form on the device of a call.
class TestWeights {
 public:
  TestWeights(std::mt19937_64& random, kernels::DType dtype, int64_t outputs, int64_t k)
      : matrix_{nullptr, kernels::weight_format(dtype), outputs, k},
        plain_(encode(spread_floats(random, static_cast<size_t>(outputs * k)), dtype)),
        packed_(kernels::packed_bytes(matrix_.format, outputs, k)) {
    kernels::pack_matrix(matrix_.format, plain_.data(), outputs, k, packed_.data());
  }
  // The gate and up projections of an expert in one matrix.
  static TestWeights gate_up(std::mt19937_64& random, kernels::DType dtype, int64_t ffn,
                             int64_t k) {
    const TestWeights gate(random, dtype, ffn, k), up(random, dtype, ffn, k);
    TestWeights both = gate;
    both.matrix_.outputs = 2 * kernels::padded_outputs(ffn);
    both.packed_.resize(2 * gate.packed_.size());
    kernels::pack_gate_up(gate.matrix_.format, gate.plain_.data(), up.plain_.data(), ffn, k,
                          both.packed_.data());
    return both;
  }

  kernels::PackedMatrix upload(Tensors& tensors) const {
    kernels::PackedMatrix matrix = matrix_;
    matrix.data = tensors.in(packed_);
    return matrix;
  }

 private:
  kernels::PackedMatrix matrix_;
  std::vector<uint8_t> plain_, packed_;
};

}  // namespace brigade::tests
