// Kernel launches and their attributes on the stand-in's streams.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>

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

constexpr uint64_t kPage = 4096;
constexpr uint64_t kUserAddresses = uint64_t{1} << 47;

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

// Heap or stack. Constants of the program are let through: structs carry descriptions of formats
// along that no kernel reads.
bool is_host_memory(uint64_t address) {
  unsigned char resident;
  dl_find_object object;
  return mincore(reinterpret_cast<void*>(address / kPage * kPage), 1, &resident) == 0 &&
         _dl_find_object(reinterpret_cast<void*>(address), &object) != 0;
}

// Below, nothing is an address: two 32-bit numbers side by side make small ones, which lead into the
// address sanitizer's shadow, where everything is mapped.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kLowestAddress = 0x100080000000;
#else
constexpr uint64_t kLowestAddress = uint64_t{1} << 32;
#endif

// Each aligned word of the arguments that could be an address must not lead to plain host memory,
// nor to another device. Numbers that look like addresses are told apart by whether anything is
// mapped there.
std::string wrong_word(const void* words, size_t bytes, int device) {
  DeviceMemory& memory = DeviceMemory::instance();
  for (size_t offset = 0; offset + sizeof(uint64_t) <= bytes; offset += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(words) + offset, sizeof(word));
    if (word < kLowestAddress || word >= kUserAddresses) continue;
    const void* const address = reinterpret_cast<const void*>(word);
    const auto found = memory.find(address);
    const std::string which =
        "byte " + std::to_string(offset) + " of its arguments is a pointer to ";
    if (found && found->kind == MemoryKind::kDevice && found->device != device) {
      return which + "memory of device " + std::to_string(found->device);
    }
    if (!found && !memory.in_device_range(address) && is_host_memory(word))
      return which + "pageable host memory";
  }
  return "";
}

void run_on_stream(const KernelLaunch& launch, const void* words, size_t bytes, int device) {
  ++count().kernels;
  const std::string name = "kernel " + kernel_name(launch.kernel);
  if (const cudaError_t fault = injected.exchange(cudaSuccess); fault != cudaSuccess) {
    fail_device(device, fault, name + ": a fault that was asked for");
    return;
  }
  if (const std::string wrong = wrong_word(words, bytes, device); !wrong.empty()) {
    fail_device(device, cudaErrorIllegalAddress, name + ": " + wrong);
    return;
  }
  const uint64_t seed = schedule_seed();
  const uint64_t drawn = seed < 2 ? seed : seed + launches.fetch_add(2) * 2;  // keeps odd and even
  if (const auto fault = run_kernel(launch, drawn)) {
    fail_device(device,
                fault->kind == FaultKind::kIllegalAddress ? cudaErrorIllegalAddress
                                                          : cudaErrorLaunchFailure,
                fault->message);
    return;
  }
  for (size_t offset = 0; offset + sizeof(void*) <= bytes; offset += sizeof(void*)) {
    const void* address;
    std::memcpy(&address, static_cast<const char*>(words) + offset, sizeof(address));
    const std::string damage = DeviceMemory::instance().damage(address);
    if (damage.empty()) continue;
    fail_device(device, cudaErrorIllegalAddress, name + ": " + damage);
    return;
  }
}

}  // namespace

void inject_fault(cudaError_t error) { injected = error; }

cudaError_t queue_kernel(KernelLaunch launch, cudaStream_t stream, const void* words,
                         size_t bytes) {
  BRIGADE_RETURN_UNLESS_USABLE();
  const int device = stream_device(stream);
  if (device < 0 || device != current_device()) return result(cudaErrorInvalidResourceHandle);
  if (const cudaError_t wrong = check_extents(launch); wrong != cudaSuccess) return result(wrong);
  const size_t limit = shared_limits().of(launch.kernel);
  launch.allowed_shared_bytes =
      limit > kSharedBytesDefault ? kSharedBytesOptIn : kSharedBytesDefault;
  return result(submit(stream, {.run = [=] { run_on_stream(launch, words, bytes, device); }}));
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
