// Whether a planted bug shows. Found means: in one of a few orders of threads the launch faults, or
// the output has the poison's or other bits than the right ones. Test thread only.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "tests/cuda_emulation/device_array.h"
#include "tests/cuda_emulation/runtime/control.h"

namespace brigade::cuda_emulation {

inline constexpr int kThreads = 128;
inline constexpr int kOrders = 8;

inline std::vector<float> numbers(int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i)) * 3;
  return values;
}

// Runs `launch_once` in several orders. True when one of them faults or leaves other bits than
// `right`.
inline bool is_found(const std::function<cudaError_t(float*)>& launch_once,
                     const std::vector<float>& right) {
  for (int seed = 0; seed < kOrders; ++seed) {
    set_schedule_seed(seed);
    bool faulted;
    std::vector<float> out(right.size());
    {
      const DeviceArray<float> device_out(right.size());
      faulted =
          launch_once(device_out.data()) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
      reset_faults();
      out = device_out.read();
    }
    if (faulted || std::memcmp(out.data(), right.data(), right.size() * sizeof(float)) != 0)
      return true;
  }
  return false;
}

}  // namespace brigade::cuda_emulation
