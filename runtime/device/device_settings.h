// Which device a process computes on: one typed value from flags and cluster file, checked before
// the model is read. Data and pure functions; open_device() runs once, at start.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::runtime {

struct DeviceSettings {
  std::string name = "cpu";            // cpu, cpu_async, cuda, cuda:N
  std::string cuda_module;             // path of brigade_cuda.so; empty: beside the binary
  std::string gpu_math = "identical";  // or "fast"; of a GPU only
  std::string gpu_graphs = "on";       // or "off"; other devices have none
};

// INVALID_ARGUMENT names the flag.
absl::Status check(const DeviceSettings& settings);
bool is_gpu(const DeviceSettings& settings);
inline bool wants_graphs(const DeviceSettings& settings) { return settings.gpu_graphs == "on"; }

// One sentence, FAILED_PRECONDITION or NOT_FOUND, when there is no such device on this machine.
absl::StatusOr<std::unique_ptr<kernels::Device>> open_device(const DeviceSettings& settings,
                                                             int threads);

// "cpu", "cuda:0, identical maths"; ", no graphs" where they are off.
std::string describe(const DeviceSettings& settings);

}  // namespace brigade::runtime
