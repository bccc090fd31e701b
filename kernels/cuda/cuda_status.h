// A CUDA error as a status that says which call failed, with what. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace brigade::kernels::cuda {

// "<call>(<arguments>): <error's name>: <its text>". Also clears the runtime's last error, so that
// a later query does not find it again. RESOURCE_EXHAUSTED: no memory. FAILED_PRECONDITION: no
// driver, no GPU or one that was lost. INTERNAL: all else.
absl::Status failed_call(cudaError_t error, const char* call, const std::string& arguments);

// OK, or failed_call() with the arguments written after each other. Nothing is allocated when all
// is well.
template <typename... Arguments>
absl::Status cuda_status(cudaError_t error, const char* call, const Arguments&... arguments) {
  if (error == cudaSuccess) return absl::OkStatus();
  return failed_call(error, call, absl::StrCat(arguments...));
}

}  // namespace brigade::kernels::cuda
