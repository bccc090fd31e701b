// Pieces shared by the tests of matrix products and experts: random weights in every format,
// aligned packed memory, instruction sets to run on, bitwise comparison that reports the first
// difference.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/core/device.h"
#include "kernels/ops/packed_matrix.h"
#include "kernels/reference/canonical_matmul.h"

namespace brigade::kernels::tests {

// 64-byte aligned host memory.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
};

// A row-major matrix with random values in its dtype, and its packed form.
class TestMatrix {
 public:
  TestMatrix(DType dtype, int64_t outputs, int64_t k, uint64_t seed);
  reference::RowMajorWeights plain() const { return {bytes_.data(), dtype_, outputs_, k_}; }
  PackedMatrix packed() const { return {packed_.data(), weight_format(dtype_), outputs_, k_}; }
  const void* bytes() const { return bytes_.data(); }

 private:
  DType dtype_;
  int64_t outputs_, k_;
  std::vector<uint8_t> bytes_;
  AlignedBytes packed_;
};

std::vector<uint8_t> random_weights(DType dtype, size_t count, uint64_t seed);
std::vector<float> random_rows(size_t count, uint64_t seed);

// While alive, kernels use one instruction set, a name from simd_targets().
class UseInstructionSet {
 public:
  explicit UseInstructionSet(const std::string& name);
  ~UseInstructionSet();
};

// Number of elements whose bits differ; `first` receives the index of the first one.
size_t count_bit_differences(std::span<const float> a, std::span<const float> b, size_t* first);
::testing::AssertionResult bits_equal(std::span<const float> got, std::span<const float> want,
                                      int64_t row_length);

struct CpuDevice {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};
CpuDevice make_device(DeviceKind kind, int threads);

}  // namespace brigade::kernels::tests
