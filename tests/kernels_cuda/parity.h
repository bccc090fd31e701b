// Holds a CUDA kernel against the CPU kernel of the same op: equal bits in everything it writes, in
// every order of threads. A NaN equals any NaN: its payload is not part of the contract.
//
//   expect_parity(rms_norm, [&](Tensors& t) {
//     return RmsNormArgs{.x = t.in(x), .weight = t.in(weight), .out = t.out<float>(rows * hidden),
//     ...};
//   });
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "tests/kernels/op_runner.h"
#include "tests/kernels_cuda/device_under_test.h"

namespace brigade::tests {

// One element type a parity check can print and compare.
template <typename T>
constexpr kernels::DType dtype_of() {
  static_assert(sizeof(T) == 4 && (std::is_same_v<T, float> || std::is_integral_v<T>));
  return std::is_same_v<T, float> ? kernels::DType::kF32 : kernels::DType::kI32;
}

// The tensors of one call on one device. What may be written comes back through results().
class Tensors {
 public:
  explicit Tensors(OpRunner& runner) : runner_(runner) {}

  template <typename T>
  const T* in(const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    return inputs_.emplace_back(runner_.upload(values)).template as<T>();
  }
  // Filled with 0xFF before the call: NaN, or -1.
  void* out(kernels::DType dtype, size_t count) {
    return inout(dtype, std::vector<uint8_t>(count * kernels::dtype_bytes(dtype), 0xFF));
  }
  template <typename T>
  T* out(size_t count) {
    return static_cast<T*>(out(dtype_of<T>(), count));
  }
  // In place: `values` before the call.
  template <typename T>
  T* inout(const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return static_cast<T*>(inout(dtype_of<T>(), bytes));
  }
  void* inout(kernels::DType dtype, const std::vector<uint8_t>& bytes) {
    outputs_.push_back({dtype, runner_.upload(bytes)});
    return outputs_.back().buffer.data();
  }
  // Memory whose contents nobody looks at afterwards; poisoned too.
  void* scratch(size_t bytes) {
    return inputs_.emplace_back(runner_.upload(std::vector<uint8_t>(bytes, 0xFF))).data();
  }
  OpRunner& runner() { return runner_; }

  struct Result {
    kernels::DType dtype;
    std::vector<uint8_t> bytes;
  };
  std::vector<Result> results() {
    std::vector<Result> results;
    for (const Output& output : outputs_) {
      results.push_back({output.dtype, runner_.download<uint8_t>(output.buffer)});
    }
    return results;
  }

 private:
  struct Output {
    kernels::DType dtype;
    kernels::Buffer buffer;
  };
  OpRunner& runner_;
  std::vector<kernels::Buffer> inputs_;
  std::vector<Output> outputs_;
};

inline std::string element_text(kernels::DType dtype, const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, kernels::dtype_bytes(dtype));
  if (dtype == kernels::DType::kI32) return std::to_string(static_cast<int32_t>(bits));
  const float value = dtype == kernels::DType::kBF16  ? kernels::bf16_to_f32(bits)
                      : dtype == kernels::DType::kF16 ? kernels::f16_to_f32(bits)
                                                      : kernels::f32_of_bits(bits);
  char text[64];
  std::snprintf(text, sizeof(text), "%.9g (0x%x)", value, bits);
  return value != value ? "nan" : text;
}

// Empty, or the first element in which they differ.
inline std::string first_difference(const std::vector<Tensors::Result>& expected,
                                    const std::vector<Tensors::Result>& actual) {
  for (size_t tensor = 0; tensor < expected.size(); ++tensor) {
    const auto& [dtype, bytes] = expected[tensor];
    const std::vector<uint8_t>& others = actual[tensor].bytes;
    if (bytes == others) continue;
    const size_t size = kernels::dtype_bytes(dtype);
    for (size_t i = 0; i < bytes.size(); i += size) {
      if (std::memcmp(&bytes[i], &others[i], size) == 0) continue;
      const std::string want = element_text(dtype, &bytes[i]),
                        got = element_text(dtype, &others[i]);
      if (want == got) continue;  // both NaN
      return "written tensor " + std::to_string(tensor) + ", element " + std::to_string(i / size) +
             ": cuda " + got + ", cpu " + want;
    }
  }
  return "";
}

// `op` on the CPU, then on the device under test in every order of threads; `call` builds the same
// arguments anew for each. Returns the first difference, or nothing.
template <typename Args, typename Call>
std::string parity_difference(absl::Status (*op)(kernels::Stream&, const Args&), const Call& call) {
  const auto run = [&](OpRunner& runner) {
    Tensors tensors(runner);
    const Args args = call(tensors);
    OpRunner::expect_ok(op(runner.stream(), args));
    runner.synchronize();
    return tensors.results();
  };
  OpRunner cpu(kernels::DeviceKind::kCpu, 1);
  const std::vector<Tensors::Result> expected = run(cpu);
  for (const uint64_t order : thread_orders()) {
    use_thread_order(order);
    OpRunner cuda(create_device_under_test());
    const std::string difference = first_difference(expected, run(cuda));
    if (!difference.empty()) return difference + " (thread order " + std::to_string(order) + ")";
  }
  return "";
}

template <typename Args, typename Call>
void expect_parity(absl::Status (*op)(kernels::Stream&, const Args&), const Call& call) {
  EXPECT_EQ("", parity_difference(op, call));
}

}  // namespace brigade::tests
