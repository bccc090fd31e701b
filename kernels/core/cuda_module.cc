#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/build_version.h"
#include "kernels/core/device_cuda.h"

namespace brigade::kernels {
namespace {

constexpr char kFileName[] = "brigade_cuda.so";

std::vector<std::string> places(const std::string& path) {
  if (!path.empty()) return {path};
  std::error_code error;
  const std::filesystem::path binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {kFileName};
  const std::filesystem::path folder = binary.parent_path();
  return {folder / kFileName, folder.parent_path() / "lib" / "brigade" / kFileName};
}

absl::StatusOr<OpenCudaModule> open_file(const std::string& path) {
  OpenCudaModule open;
  // Never closed: threads and destructors of the CUDA libraries live in it.
  open.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (open.handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA module ", path, " cannot be opened: ", dlerror()));
  }
  const auto entry = reinterpret_cast<CudaModuleEntry>(dlsym(open.handle, kCudaModuleEntry));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is not a Brigade CUDA module"));
  }
  open.module = entry();
  if (open.module->layout != kCudaModuleLayout ||
      open.module->version != std::string(kBuildVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CUDA module ", path, " is of version ", open.module->version, " (layout ",
                     open.module->layout, "), this binary of ", kBuildVersion, " (layout ",
                     kCudaModuleLayout, ")"));
  }
  return open;
}

}  // namespace

absl::StatusOr<OpenCudaModule> open_cuda_module(const std::string& path) {
  const std::vector<std::string> candidates = places(path);
  for (const std::string& candidate : candidates) {
    std::error_code error;
    if (std::filesystem::exists(candidate, error)) return open_file(candidate);
  }
  return absl::NotFoundError(
      absl::StrCat("no CUDA module at ", absl::StrJoin(candidates, " or "),
                   "; build it with the preset cuda, or use the device cpu"));
}

}  // namespace brigade::kernels
