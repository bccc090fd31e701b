#include "expert_parallel/transport/nccl_module.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace brigade::expert_parallel {

absl::StatusOr<const NcclModule*> find_nccl_module(const kernels::OpenCudaModule& cuda) {
  const auto entry = reinterpret_cast<NcclModuleEntry>(dlsym(cuda.handle, kNcclModuleEntry));
  if (entry == nullptr) return absl::NotFoundError("this CUDA module was built without NCCL");
  const NcclModule* module = entry();
  if (module->layout != kNcclModuleLayout) {
    return absl::FailedPreconditionError(absl::StrCat("NCCL of the CUDA module has layout ",
                                                      module->layout, ", this binary ",
                                                      kNcclModuleLayout));
  }
  return module;
}

}  // namespace brigade::expert_parallel
