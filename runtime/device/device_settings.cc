#include "runtime/device/device_settings.h"

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace brigade::runtime {
namespace {

using kernels::CudaMath;
using kernels::DeviceKind;
using kernels::DeviceOptions;

absl::StatusOr<CudaMath> parse_math(const std::string& name) {
  if (name == "identical") return CudaMath::kIdentical;
  if (name == "fast") return CudaMath::kFast;
  return absl::InvalidArgumentError(
      absl::StrCat("--gpu-math: '", name, "' is neither identical nor fast"));
}

absl::StatusOr<DeviceOptions> options_of(const DeviceSettings& settings) {
  absl::StatusOr<DeviceOptions> options = kernels::Device::parse(settings.name);
  if (!options.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: ", std::string(options.status().message())));
  }
  ASSIGN_OR_RETURN(options->cuda_math, parse_math(settings.gpu_math));
  options->cuda_module = settings.cuda_module;
  if (options->kind == DeviceKind::kCuda) return options;
  if (options->cuda_math == CudaMath::kFast) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpu-math fast: the device is ", settings.name, ", no GPU"));
  }
  if (!settings.cuda_module.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cuda-module: the device is ", settings.name, ", no GPU"));
  }
  return options;
}

}  // namespace

absl::Status check(const DeviceSettings& settings) {
  if (settings.gpu_graphs != "on" && settings.gpu_graphs != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpu-graphs: '", settings.gpu_graphs, "' is neither on nor off"));
  }
  return options_of(settings).status();
}

bool is_gpu(const DeviceSettings& settings) {
  const absl::StatusOr<DeviceOptions> options = options_of(settings);
  return options.ok() && options->kind == DeviceKind::kCuda;
}

absl::StatusOr<std::unique_ptr<kernels::Device>> open_device(const DeviceSettings& settings,
                                                             int threads) {
  ASSIGN_OR_RETURN(DeviceOptions options, options_of(settings));
  options.threads = threads;
  absl::StatusOr<std::unique_ptr<kernels::Device>> device = kernels::Device::create(options);
  if (device.ok()) return device;
  return absl::Status(device.status().code(), absl::StrCat("--device ", settings.name, ": ",
                                                           std::string(device.status().message())));
}

std::string describe(const DeviceSettings& settings) {
  if (!is_gpu(settings)) return settings.name;
  return absl::StrCat(settings.name, ", ", settings.gpu_math, " maths",
                      wants_graphs(settings) ? "" : ", no graphs");
}

}  // namespace brigade::runtime
