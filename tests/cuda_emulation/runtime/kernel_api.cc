// Kernel launches and their attributes on the stand-in's streams.
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"
#include "tests/cuda_emulation/shim/kernel_launch.h"

namespace brigade::cuda_emulation {
namespace {

std::atomic<cudaError_t> injected{cudaSuccess};
std::atomic<uint64_t> launches{0};

// The opted-in dynamic shared memory of each kernel.
class SharedLimits {
 public:
  void set(const void* kernel, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    limits_[kernel] = bytes;
  }
  size_t of(const void* kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = limits_.find(kernel);
    return found == limits_.end() ? kSharedBytesDefault : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, size_t> limits_;  // guarded by mutex_
};

SharedLimits& shared_limits() {
  static auto* const limits = new SharedLimits;
  return *limits;
}

cudaError_t check_extents(const KernelLaunch& launch) {
  const dim3 grid = launch.grid, block = launch.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0 ||
      grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535 || block.x > 1024 ||
      block.y > 1024 || block.z > 64 ||
      uint64_t{block.x} * block.y * block.z > kMaxThreadsPerBlock) {
    return cudaErrorInvalidConfiguration;
  }
  return launch.dynamic_shared_bytes > shared_limits().of(launch.kernel) ? cudaErrorInvalidValue
                                                                         : cudaSuccess;
}

// The address that the arguments hold at `offset`.
const void* pointer_at(const KernelLaunch& launch, size_t offset) {
  const void* address;
  std::memcpy(&address, static_cast<const char*>(launch.arguments.get()) + offset, sizeof(address));
  return address;
}

// Empty, or the argument that leads to plain host memory or to another device.
std::string wrong_pointer(const KernelLaunch& launch, int device) {
  DeviceMemory& memory = DeviceMemory::instance();
  for (const size_t offset : launch.pointers) {
    const void* const address = pointer_at(launch, offset);
    if (address == nullptr) continue;
    const auto found = memory.find(address);
    const bool far = found && found->kind == MemoryKind::kDevice && found->device != device;
    if (!far && (found || memory.in_device_range(address))) continue;
    return "byte " + std::to_string(offset) + " of its arguments is a pointer to " +
           (far ? "memory of device " + std::to_string(found->device)
                : std::string("pageable host memory"));
  }
  return "";
}

// Empty, or what was written beside an allocation that an argument leads to.
std::string damage_by(const KernelLaunch& launch) {
  for (const size_t offset : launch.pointers) {
    std::string damage = DeviceMemory::instance().damage(pointer_at(launch, offset));
    if (!damage.empty()) return damage;
  }
  return "";
}

void run_on_stream(const KernelLaunch& launch, int device) {
  ++count().kernels;
  const auto fail = [&](cudaError_t error, const std::string& why) {
    fail_device(device, error, "kernel " + kernel_name(launch.kernel) + ": " + why);
  };
  if (const cudaError_t fault = injected.exchange(cudaSuccess); fault != cudaSuccess)
    return fail(fault, "a fault that was asked for");
  if (const std::string wrong = wrong_pointer(launch, device); !wrong.empty())
    return fail(cudaErrorIllegalAddress, wrong);
  const uint64_t seed = schedule_seed();
  const uint64_t drawn = seed < 2 ? seed : seed + launches.fetch_add(2) * 2;  // keeps odd and even
  if (const auto fault = run_kernel(launch, drawn)) {
    return fail_device(device, fault->error, fault->message);
  }
  if (const std::string damage = damage_by(launch); !damage.empty())
    fail(cudaErrorIllegalAddress, damage);
}

}  // namespace

void inject_fault(cudaError_t error) { injected = error; }

cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t stream) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const int device = stream_device(stream);
  if (device < 0 || device != current_device()) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t wrong = check_extents(launch); wrong != cudaSuccess) return result(wrong);
  const size_t limit = shared_limits().of(launch.kernel);
  launch.allowed_shared_bytes =
      limit > kSharedBytesDefault ? kSharedBytesOptIn : kSharedBytesDefault;
  return result(submit(stream, {.run = [=] { run_on_stream(launch, device); }}));
}

}  // namespace brigade::cuda_emulation

using namespace brigade::cuda_emulation;

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (function == nullptr) return result(cudaErrorInvalidDeviceFunction);
  switch (attribute) {
    case cudaFuncAttributeMaxDynamicSharedMemorySize:
      if (value < 0 || static_cast<size_t>(value) > kSharedBytesOptIn)
        return result(cudaErrorInvalidValue);
      shared_limits().set(function, static_cast<size_t>(value));
      return cudaSuccess;
    case cudaFuncAttributePreferredSharedMemoryCarveout:
      return value < -1 || value > 100 ? result(cudaErrorInvalidValue) : cudaSuccess;
    default:
      return result(cudaErrorInvalidValue);
  }
}
