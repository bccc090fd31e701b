// Numbers and device memory for the numerics probe: values built from integers alone, tensors up
// and down. Private to kernels/ops. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/core/device.h"
#include "kernels/core/status.h"
#include "kernels/ops/numerics_probe.h"

namespace brigade::kernels {

// SplitMix64 (Steele, Lea, Flood 2014), and values assembled from its bits: sign, exponent and
// mantissa are integers, so bf16 and f16 need no rounding either. Magnitudes lie in [2^-6, 2).
class ProbeNumbers {
 public:
  explicit ProbeNumbers(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // `count` values in the bytes of `dtype` (f32, bf16 or f16).
  std::vector<uint8_t> values(DType dtype, size_t count);

 private:
  uint64_t state_;
};

// A stream of the probed device, what it was given, and what came out.
class ProbeBench {
 public:
  ProbeBench(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  Device& device() { return device_; }
  Stream& stream() { return stream_; }
  ProbeNumbers& numbers() { return numbers_; }

  absl::StatusOr<Buffer> allocate(size_t bytes) { return Buffer::allocate(device_, bytes); }
  absl::StatusOr<Buffer> upload(const void* data, size_t bytes);
  template <typename T>
  absl::StatusOr<Buffer> upload(const std::vector<T>& data) {
    return upload(data.data(), data.size() * sizeof(T));
  }
  absl::StatusOr<Buffer> random(DType dtype, size_t count) {
    return upload(numbers_.values(dtype, count));
  }
  absl::StatusOr<std::vector<uint8_t>> download(const Buffer& buffer);
  // Brings a buffer's bits to the host, as the output of piece `name`.
  absl::Status keep(std::string name, const Buffer& buffer);
  void keep(std::string name, const void* bits, size_t bytes);
  std::vector<ProbeOutput> take_outputs() { return std::move(outputs_); }

 private:
  absl::Status wait() { return stream_.synchronize(absl::Now() + absl::Minutes(1)); }

  Device& device_;
  Stream& stream_;
  ProbeNumbers numbers_{20251130};
  std::vector<ProbeOutput> outputs_;
};

// The pieces; each adds its outputs. In probe_dense.cc, probe_moe.cc, probe_attention.cc,
// probe_sampling.cc. They take weights as the device keeps them, and numbers of rows for every path
// that a device has.
absl::Status probe_math(ProbeBench& bench);
absl::Status probe_row_ops(ProbeBench& bench);
absl::Status probe_matmul(ProbeBench& bench);
absl::Status probe_experts(ProbeBench& bench);
absl::Status probe_attention(ProbeBench& bench);
absl::Status probe_router(ProbeBench& bench);
absl::Status probe_sampling(ProbeBench& bench);

}  // namespace brigade::kernels
