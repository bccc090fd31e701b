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

struct Nccl {
  const expert_parallel::NcclModule* module = nullptr;
  size_t gpus = 0;  // that this process sees
};

absl::StatusOr<Nccl> open_nccl(const DeviceSettings& settings) {
  if (!is_gpu(settings))
    return absl::FailedPreconditionError(absl::StrCat("the device is ", settings.name, ", no GPU"));
  ASSIGN_OR_RETURN(const kernels::OpenCudaModule cuda,
                   kernels::open_cuda_module(settings.cuda_module));
  ASSIGN_OR_RETURN(const expert_parallel::NcclModule* module,
                   expert_parallel::find_nccl_module(cuda));
  RETURN_IF_ERROR(module->version().status());
  ASSIGN_OR_RETURN(const std::vector<kernels::CudaDeviceInfo> gpus, cuda.module->devices());
  return Nccl{module, gpus.size()};
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
  const absl::StatusOr<Nccl> nccl = open_nccl(device);
  if (choice == "auto") {
    if (!nccl.ok()) return std::vector<std::string>{"host"};
    // NCCL connects no GPU with itself, and on a machine with one all processes share it.
    if (nccl->gpus < 2) return std::vector<std::string>{"host", "nccl"};
    return std::vector<std::string>{"nccl", "host"};
  }
  if (!nccl.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data-plane nccl: ", std::string(nccl.status().message())));
  }
  return std::vector<std::string>{"nccl"};
}

std::string describe_planes(const std::vector<std::string>& planes) {
  if (planes.size() < 2 || planes[0] != "host") return planes[0];
  return "host (this process sees one GPU; --data-plane nccl if all workers are on others)";
}

absl::StatusOr<std::unique_ptr<Transport>> make_data_plane(const std::string& plane,
                                                           kernels::Device& device,
                                                           const DeviceSettings& settings,
                                                           const DataPlaneEnd& end) {
  if (plane == "host") return make_host_plane(end, expert_parallel::kMaxFrameBytes);
  if (plane != "nccl")
    return absl::InvalidArgumentError(absl::StrCat("no data plane is called '", plane, "'"));
  ASSIGN_OR_RETURN(const Nccl nccl, open_nccl(settings));
  ASSIGN_OR_RETURN(auto host, make_host_plane(end, expert_parallel::kMaxFrameBytes +
                                                       expert_parallel::kNcclTrailerBytes));
  return nccl.module->create(std::move(host), static_cast<kernels::CudaDevice&>(device),
                             {.makes_ids = end.coordinator});
}

}  // namespace brigade::runtime
