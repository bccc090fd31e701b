// CUDA devices as the binaries see them. All CUDA code is one module, brigade_cuda.so, opened only
// by a process that asks for the device: the others pay neither its start nor its memory, and one
// build runs on hosts without CUDA. The module is built from the same tree and refused when its
// version differs.
//
// A module stays open until the process ends. Threads: open_cuda_module() any; devices and streams
// as in kernels/core/device.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/device.h"

namespace brigade::kernels {

struct CudaOps;  // kernels/ops/cuda_ops.h: the module's kernels

class CudaDevice : public Device {
 public:
  virtual const CudaOps& ops() const = 0;
  virtual int ordinal() const = 0;
  virtual CudaMath math() const { return CudaMath::kIdentical; }
  // Something runs on the GPU that will not end: from now on memory is not freed, which would wait.
  virtual void work_is_lost() {}
};

class CudaStream : public Stream {
 public:
  virtual const CudaOps& ops() const = 0;
  virtual void* native() const = 0;  // cudaStream_t
  // Records a cudaEvent_t of the caller's, also while another thread records a graph of this
  // stream: waits until that has ended, else the event would become part of the graph. Returns a
  // cudaError_t.
  virtual int record_for(void* event) = 0;
};

struct CudaDeviceInfo {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  size_t memory_bytes = 0;
};

// What the module's one entry point returns. Lives in the module, which is never closed.
struct CudaModule {
  uint32_t layout = 0;  // kCudaModuleLayout of its build
  const char* version = nullptr;
  // FAILED_PRECONDITION with one sentence when there is no usable driver or no GPU.
  absl::StatusOr<std::vector<CudaDeviceInfo>> (*devices)() = nullptr;
  absl::StatusOr<std::unique_ptr<Device>> (*create_device)(const DeviceOptions& options) = nullptr;
};
inline constexpr uint32_t kCudaModuleLayout = 1;
inline constexpr char kCudaModuleEntry[] = "brigade_cuda_module";
using CudaModuleEntry = const CudaModule* (*)();

// Opens the module at `path`; empty: brigade_cuda.so beside the running binary, then in
// ../lib/brigade. NOT_FOUND names the places looked at; FAILED_PRECONDITION the library that is
// missing on this host or the version that does not match. The handle of dlopen is kept for further
// symbols.
struct OpenCudaModule {
  const CudaModule* module = nullptr;
  void* handle = nullptr;
};
absl::StatusOr<OpenCudaModule> open_cuda_module(const std::string& path);

}  // namespace brigade::kernels
