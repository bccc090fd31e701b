#include "runtime/device/data_plane_choice.h"

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/nccl_module.h"
#include "kernels/core/device_cuda.h"
#include "kernels/core/status.h"
#ifdef BRIGADE_HAVE_UCX
#include "expert_parallel/transport/ucx_transport.h"
#endif

namespace brigade::runtime {
namespace {

using expert_parallel::Transport;

absl::StatusOr<const expert_parallel::NcclModule*> open_nccl(const DeviceSettings& settings) {
  if (!is_gpu(settings)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-plane nccl: the device is ", settings.name, ", no GPU"));
  }
  ASSIGN_OR_RETURN(const kernels::OpenCudaModule module,
                   kernels::open_cuda_module(settings.cuda_module));
  return expert_parallel::find_nccl_module(module);
}

absl::StatusOr<std::unique_ptr<Transport>> make_host_plane(const DataPlaneEnd& end,
                                                           size_t max_message_bytes) {
#ifdef BRIGADE_HAVE_UCX
  expert_parallel::UcxOptions options;
  options.transport.max_message_bytes = max_message_bytes;
  options.net_devices = end.net_devices;
  return expert_parallel::make_ucx_transport(options);
#else
  return absl::InvalidArgumentError("this program was built without UCX, which workers need");
#endif
}

}  // namespace

absl::StatusOr<std::vector<std::string>> data_planes(const std::string& choice,
                                                     const DeviceSettings& device) {
  if (choice == "host") return std::vector<std::string>{"host"};
  if (choice != "auto" && choice != "nccl") {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-plane ", choice, ": known are auto, nccl, host"));
  }
  const absl::Status nccl = open_nccl(device).status();
  if (choice == "auto") {
    if (nccl.ok()) return std::vector<std::string>{"nccl", "host"};
    return std::vector<std::string>{"host"};
  }
  if (!nccl.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-plane nccl: ", std::string(nccl.message())));
  }
  return std::vector<std::string>{"nccl"};
}

absl::StatusOr<std::unique_ptr<Transport>> make_data_plane(const std::string& plane,
                                                           kernels::Device& device,
                                                           const DeviceSettings& settings,
                                                           const DataPlaneEnd& end) {
  if (plane == "host") return make_host_plane(end, expert_parallel::kMaxFrameBytes);
  if (plane != "nccl")
    return absl::InvalidArgumentError(absl::StrCat("no data plane is called '", plane, "'"));
  ASSIGN_OR_RETURN(const expert_parallel::NcclModule* nccl, open_nccl(settings));
  ASSIGN_OR_RETURN(auto host, make_host_plane(end, expert_parallel::kMaxFrameBytes +
                                                       expert_parallel::kNcclTrailerBytes));
  return nccl->create(std::move(host), static_cast<kernels::CudaDevice&>(device),
                      {.makes_ids = end.coordinator});
}

}  // namespace brigade::runtime
