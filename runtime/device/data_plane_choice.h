// How rows travel between a coordinator and its expert workers: "nccl" between GPUs, or "host"
// through host memory and UCX. A coordinator uses one for all its workers, a worker says which it
// can. Pure but make_data_plane(); at start, and at each registration of a worker.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "expert_parallel/transport/transport.h"
#include "kernels/core/device.h"
#include "runtime/device/device_settings.h"

namespace brigade::runtime {

inline constexpr char kDataPlaneHelp[] =
    "How rows travel: nccl (between GPUs), host (host memory and UCX), or auto: nccl where this "
    "process is on a GPU, sees others, and its CUDA module has NCCL";

// `choice` is auto, nccl or host. The names of what this process can use, best first.
// INVALID_ARGUMENT names the flag, also when NCCL is asked for and not there.
absl::StatusOr<std::vector<std::string>> data_planes(const std::string& choice,
                                                     const DeviceSettings& device);

// The first of them, and why it is first where that may surprise.
std::string describe_planes(const std::vector<std::string>& planes);

struct DataPlaneEnd {
  std::string net_devices;   // of UCX; empty: any
  bool coordinator = false;  // the coordinator's end of all links
};
// The transport of a plane out of data_planes(); `device` outlives it.
absl::StatusOr<std::unique_ptr<expert_parallel::Transport>> make_data_plane(
    const std::string& plane, kernels::Device& device, const DeviceSettings& settings,
    const DataPlaneEnd& end);

}  // namespace brigade::runtime
