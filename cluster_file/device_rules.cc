// Which device each role computes on, and what must fit between them.
#include <set>

#include "absl/strings/str_cat.h"
#include "cluster_file/cluster_layout.h"
#include "cluster_file/field_rules.h"
#include "cluster_file/rules.h"

namespace brigade::cluster_file {
namespace {

std::string worker_key(int role, const char* key) {
  return absl::StrCat("workers[", role, "].", key);
}

// Fast maths gives other bits than a CPU: who shares a request's rows has it, or nobody.
void check_gpu_math(const RuleContext& c) {
  if (c.file.numerics().gpu_math() != "fast") return;
  const auto fault = [&c](const std::string& name, const std::string& device) {
    c.fault("numerics.gpu_math",
            absl::StrCat("is fast, but ", name, " computes on ", device,
                         "; then the coordinator and all workers need devices cuda:N"));
  };
  if (!is_cuda_device(c.file.coordinator().device())) {
    return fault("the coordinator", c.file.coordinator().device());
  }
  for (const WorkerProcess& worker : expanded_workers(c.file)) {
    if (!is_cuda_device(worker.device)) return fault(worker.name, worker.device);
  }
}

// Two processes on one GPU are no two ends for NCCL.
bool shares_gpu(const RuleContext& c, const WorkerProcess& worker) {
  const v1::CoordinatorRole& coordinator = c.file.coordinator();
  return worker.host == coordinator.host() && worker.device == coordinator.device();
}

// Why rows cannot travel by NCCL between the coordinator on a GPU and the worker; empty: they can.
std::string no_nccl(const RuleContext& c, const WorkerProcess& worker) {
  if (!is_cuda_device(worker.device)) {
    return absl::StrCat(worker.name, " computes on ", worker.device);
  }
  if (shares_gpu(c, worker)) {
    return absl::StrCat(worker.name, " shares ", worker.device, " of host ", worker.host,
                        " with the coordinator");
  }
  if (c.file.workers(worker.role).data_plane() == "host") {
    return absl::StrCat(worker_key(worker.role, "data_plane"), " is host");
  }
  return "";
}

// What a worker's own key asks for that cannot be. True: something was wrong.
bool check_worker_plane(const RuleContext& c, const WorkerProcess& worker) {
  if (c.file.workers(worker.role).data_plane() != "nccl") return false;
  const auto fault = [&](const std::string& why) {
    c.fault(worker_key(worker.role, "data_plane"), absl::StrCat("is nccl, but ", why));
    return true;
  };
  const v1::CoordinatorRole& coordinator = c.file.coordinator();
  if (coordinator.data_plane() == "host") {
    return fault("coordinator.data_plane is host, and that holds for all workers");
  }
  if (!is_cuda_device(coordinator.device())) {
    return fault(absl::StrCat("the coordinator computes on ", coordinator.device()));
  }
  const std::string why = no_nccl(c, worker);
  return !why.empty() && fault(why);
}

// The coordinator's plane holds for all its workers.
void check_planes(const RuleContext& c) {
  const v1::CoordinatorRole& coordinator = c.file.coordinator();
  const std::string& plane = coordinator.data_plane();
  const bool on_gpu = is_cuda_device(coordinator.device());
  if (plane == "nccl" && !on_gpu) {
    c.fault("coordinator.data_plane",
            absl::StrCat("is nccl, but the coordinator computes on ", coordinator.device()));
  }
  for (const WorkerProcess& worker : expanded_workers(c.file)) {
    if (check_worker_plane(c, worker)) return;
    const std::string why = on_gpu && plane != "host" ? no_nccl(c, worker) : "";
    if (why.empty()) continue;
    if (plane == "nccl") {
      c.fault("coordinator.data_plane", absl::StrCat("is nccl, but ", why));
    } else {
      c.notes->push_back(
          absl::StrCat("coordinator.data_plane: auto is nccl on a machine with NCCL and "
                       "several GPUs, and ",
                       why, ": set host if it is to join"));
    }
    return;  // the rest would say the same
  }
}

}  // namespace

void check_devices(const RuleContext& c) {
  const auto check_index = [&c](const std::string& key, const std::string& device) {
    if (device.find('{') == std::string::npos) return;
    c.fault(key, "{index} is for workers with a count");
  };
  check_index("coordinator.device", c.file.coordinator().device());
  bool any_cuda = is_cuda_device(c.file.coordinator().device());
  for (int i = 0; i < c.file.drafts_size(); ++i) {
    check_index(absl::StrCat("drafts[", i, "].device"), c.file.drafts(i).device());
    any_cuda = any_cuda || is_cuda_device(c.file.drafts(i).device());
  }
  std::set<std::string> taken;
  for (const WorkerProcess& worker : expanded_workers(c.file)) {
    if (!is_cuda_device(worker.device)) {
      if (worker.device.rfind("cuda:", 0) == 0) {
        c.fault(worker_key(worker.role, "count"), "{index} goes past the last device, cuda:63");
        return;
      }
      continue;
    }
    any_cuda = true;
    if (!taken.insert(absl::StrCat(worker.host, " ", worker.device)).second) {
      c.notes->push_back(absl::StrCat("workers[", worker.role, "]: ", worker.name, " shares ",
                                      worker.device, " of host ", worker.host,
                                      " with another worker"));
    }
  }
  if (any_cuda) c.notes->push_back("device cuda:N needs the CUDA module");
  check_gpu_math(c);
  check_planes(c);
}

}  // namespace brigade::cluster_file
