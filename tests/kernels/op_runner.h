// What every op test needs: a device with a stream, tensors up and down, comparisons that name the
// first difference, and the check that a row's bits depend on nothing but that row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/core/device.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/cpu/simd_targets.h"

namespace brigade::tests {

class OpRunner {
 public:
  OpRunner(kernels::DeviceKind kind, int threads)
      : OpRunner(kernels::Device::create(kind, threads)) {}
  explicit OpRunner(absl::StatusOr<std::unique_ptr<kernels::Device>> device) {
    EXPECT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    auto stream = device_->create_stream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  kernels::Device& device() { return *device_; }
  kernels::Stream& stream() { return *stream_; }
  int threads() const { return device_->num_threads(); }

  kernels::Buffer allocate(size_t bytes) {
    auto buffer = kernels::Buffer::allocate(*device_, bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  template <typename T>
  kernels::Buffer upload(const std::vector<T>& values) {
    kernels::Buffer buffer = allocate(values.size() * sizeof(T));
    expect_ok(stream_->copy_to_device(buffer.data(), values.data(), buffer.bytes()));
    synchronize();
    return buffer;
  }
  template <typename T>
  std::vector<T> download(const kernels::Buffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    expect_ok(stream_->copy_to_host(values.data(), buffer.data(), buffer.bytes()));
    synchronize();
    return values;
  }
  void synchronize() { expect_ok(stream_->synchronize(absl::Now() + absl::Seconds(60))); }
  static void expect_ok(const absl::Status& status) { EXPECT_TRUE(status.ok()) << status; }

 private:
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<kernels::Stream> stream_;
};

// Every device kind that runs here; ops must agree with the reference on each.
inline std::vector<kernels::DeviceKind> device_kinds() {
  return {kernels::DeviceKind::kCpu, kernels::DeviceKind::kCpuAsync};
}

inline std::vector<float> random_floats(std::mt19937_64& random, size_t count, float spread = 1) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// `values` in the bytes of `dtype`.
inline std::vector<uint8_t> encode(const std::vector<float>& values, kernels::DType dtype) {
  const size_t size = kernels::dtype_bytes(dtype);
  std::vector<uint8_t> bytes(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == kernels::DType::kBF16 ? kernels::f32_to_bf16(values[i])
                                                         : kernels::f32_to_f16(values[i]);
    const void* from = size == 2 ? static_cast<const void*>(&half) : &values[i];
    std::memcpy(bytes.data() + i * size, from, size);
  }
  return bytes;
}

// |actual - expected| <= absolute + relative * |expected| everywhere; NaN never passes.
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                         float absolute, float relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const float allowed = absolute + relative * std::fabs(expected[i]);
    ASSERT_TRUE(std::fabs(actual[i] - expected[i]) <= allowed)
        << "element " << i << " of " << actual.size() << ": got " << actual[i] << ", expected "
        << expected[i] << " within " << allowed;
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Runs rows [first, first + count) of a problem and returns what they gave, row after row.
using RunRows = std::function<std::vector<float>(OpRunner& runner, int first, int count)>;

// Runs all rows at once, in batches and alone, with 1, 2 and 3 threads, on both CPU devices and on every
// instruction set; counts the ways in which a bit differs from all rows at once on one thread.
inline int count_differences(const RunRows& run, int rows) {
  OpRunner plain(kernels::DeviceKind::kCpu, 1);
  const std::vector<float> expected = run(plain, 0, rows);
  const size_t width = expected.size() / static_cast<size_t>(rows);
  int differences = 0;
  for (const std::string& target : kernels::simd_targets()) {
    EXPECT_TRUE(kernels::force_simd_target(target));
    for (int threads = 1; threads <= 3; ++threads) {
      for (const kernels::DeviceKind kind : device_kinds()) {
        OpRunner runner(kind, threads);
        for (const int batch : {rows, 7, 1}) {
          // One row at a time is slow on the device with a thread behind each copy: fewer there.
          const int step = batch == 1 && kind == kernels::DeviceKind::kCpuAsync ? 11 : batch;
          for (int first = 0; first < rows; first += step) {
            const int count = std::min(batch, rows - first);
            const std::vector<float> part(expected.begin() + first * width,
                                          expected.begin() + (first + count) * width);
            if (!same_bits(run(runner, first, count), part)) ++differences;
          }
        }
      }
    }
    kernels::force_simd_target("");
  }
  return differences;
}

}  // namespace brigade::tests
