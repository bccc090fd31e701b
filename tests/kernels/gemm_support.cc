#include "tests/kernels/gemm_support.h"

#include <cmath>
#include <cstdlib>

#include "absl/status/statusor.h"
#include "kernels/core/check.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/ops/bf16.h"

namespace brigade::kernels::tests {
namespace {

// The upper 10 bits of the mantissa, exponent in the range of f16.
uint16_t f16_from_f32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>(bits >> 23 & 255) - 127 + 15;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (exponent <= 0) return static_cast<uint16_t>(sign | (bits >> 13 & 0x3ff));  // a subnormal
  if (exponent >= 31) return static_cast<uint16_t>(sign | 0x7bff);
  return static_cast<uint16_t>(sign | exponent << 10 | (bits >> 13 & 0x3ff));
}

}  // namespace

AlignedBytes::AlignedBytes(size_t bytes)
    : data_(std::aligned_alloc(64, (bytes + 63) / 64 * 64 + 64)) {
  CHECK(data_ != nullptr);
}

TestMatrix::TestMatrix(DType dtype, int64_t outputs, int64_t k, uint64_t seed)
    : dtype_(dtype),
      outputs_(outputs),
      k_(k),
      bytes_(random_weights(dtype, static_cast<size_t>(outputs * k), seed)),
      packed_(packed_bytes(weight_format(dtype), outputs, k)) {
  pack_matrix(weight_format(dtype), bytes_.data(), outputs, k, packed_.data());
}

std::vector<uint8_t> random_weights(DType dtype, size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> bytes(count * dtype_bytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    // Scales from 2^-17 (below f16's smallest normal number) to 2^2, so that the order of additions
    // shows.
    const float value = std::ldexp(normal(generator), static_cast<int>(generator() % 20) - 17);
    const uint16_t half = dtype == DType::kBF16 ? bf16_from_f32(value) : f16_from_f32(value);
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * 4], &value, 4);
    } else {
      std::memcpy(&bytes[i * 2], &half, 2);
    }
  }
  return bytes;
}

std::vector<float> random_rows(size_t count, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

UseInstructionSet::UseInstructionSet(const std::string& name) { CHECK(force_simd_target(name)); }
UseInstructionSet::~UseInstructionSet() { force_simd_target(""); }

size_t count_bit_differences(std::span<const float> a, std::span<const float> b, size_t* first) {
  CHECK(a.size() == b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    if (count++ == 0 && first != nullptr) *first = i;
  }
  return count;
}

::testing::AssertionResult bits_equal(std::span<const float> got, std::span<const float> want,
                                      int64_t row_length) {
  size_t first = 0;
  const size_t count = count_bit_differences(got, want, &first);
  if (count == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << count << " of " << got.size() << " values differ; first at row " << first / row_length
         << " output " << first % row_length << ": " << got[first] << " for " << want[first];
}

CpuDevice make_device(DeviceKind kind, int threads) {
  absl::StatusOr<std::unique_ptr<Device>> device = Device::create(kind, threads);
  CHECK(device.ok());
  CpuDevice result{*std::move(device), nullptr};
  absl::StatusOr<std::unique_ptr<Stream>> stream = result.device->create_stream();
  CHECK(stream.ok());
  result.stream = *std::move(stream);
  return result;
}

}  // namespace brigade::kernels::tests
