// Stand-ins for the runtime's calls about devices, versions and errors.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "tests/cuda_emulation/runtime/control.h"
#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

namespace brigade::cuda_emulation {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;
thread_local bool in_host_function = false;
std::atomic<cudaError_t> faults[kMaxDevices];

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorText* text_of(cudaError_t error) {
  for (const ErrorText& entry : kErrors) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t usable() {
  if (in_host_function) return cudaErrorNotPermitted;
  const cudaError_t driver = driver_state();
  return driver != cudaSuccess ? driver : device_error(chosen_device);
}

void run_host_function(void (*function)(void*), void* data) {
  in_host_function = true;
  function(data);
  in_host_function = false;
}

cudaError_t device_error(int device) { return faults[device]; }

void fail_device(int device, cudaError_t error, const std::string& message) {
  std::fprintf(stderr, "cuda emulation: device %d: %s\n", device, message.c_str());
  cudaError_t none = cudaSuccess;
  faults[device].compare_exchange_strong(none, error);
}

void reset_faults() {
  for (std::atomic<cudaError_t>& fault : faults) fault = cudaSuccess;
  last_error = cudaSuccess;
}

uint64_t environment_number(const char* name, uint64_t otherwise) {
  const char* set = std::getenv(name);
  return set == nullptr || *set == '\0' ? otherwise : std::strtoull(set, nullptr, 10);
}

cudaError_t driver_state() {
  const char* set = std::getenv("BRIGADE_EMULATION_DEVICES");
  if (set != nullptr && std::strcmp(set, "none") == 0) return cudaErrorInsufficientDriver;
  return device_count() == 0 ? cudaErrorNoDevice : cudaSuccess;
}

int device_count() {
  const uint64_t wanted = environment_number("BRIGADE_EMULATION_DEVICES", 2);
  return static_cast<int>(wanted < kMaxDevices ? wanted : kMaxDevices);
}

int current_device() { return chosen_device; }

size_t device_memory_bytes() {
  static const size_t bytes = environment_number("BRIGADE_EMULATION_MEMORY_MB", 8192) << 20;
  return bytes;
}

AtomicCounters& count() {
  static AtomicCounters counters;
  return counters;
}

Counters counters() {
  AtomicCounters& from = count();
  return {from.kernels,        from.blocking_copies, from.pageable_copies, from.memory_calls,
          from.graph_launches, from.library_calls,   from.bytes_to_host};
}

}  // namespace brigade::cuda_emulation

using namespace brigade::cuda_emulation;

cudaError_t cudaGetLastError() {
  const cudaError_t sticky =
      driver_state() == cudaSuccess ? device_error(chosen_device) : cudaSuccess;
  const cudaError_t error = sticky != cudaSuccess ? sticky : last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky =
      driver_state() == cudaSuccess ? device_error(chosen_device) : cudaSuccess;
  return sticky != cudaSuccess ? sticky : last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = text_of(error);
  return found == nullptr ? "unrecognized error code" : found->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* found = text_of(error);
  return found == nullptr ? "unrecognized error code" : found->text;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return result(cudaErrorInvalidValue);
  *count = 0;
  const cudaError_t driver = driver_state();
  if (driver != cudaSuccess) return result(driver);
  *count = device_count();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t driver = driver_state(); driver != cudaSuccess) return result(driver);
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  chosen_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t driver = driver_state(); driver != cudaSuccess) return result(driver);
  if (device == nullptr) return result(cudaErrorInvalidValue);
  *device = chosen_device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (value == nullptr) return result(cudaErrorInvalidValue);
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = kMaxThreadsPerBlock;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(kSharedBytesDefault);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(
          environment_number("BRIGADE_EMULATION_SHARED_KB", kSharedBytesOptIn >> 10) << 10);
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    default:
      return result(cudaErrorNotSupported);
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (properties == nullptr) return result(cudaErrorInvalidValue);
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  *properties = cudaDeviceProp{};
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device %d (on the CPU)",
                device);
  properties->uuid.bytes[0] = static_cast<char>(device + 1);  // the same in every process of a host
  properties->totalGlobalMem = device_memory_bytes();
  properties->sharedMemPerBlock = kSharedBytesDefault;
  properties->sharedMemPerBlockOptin = kSharedBytesOptIn;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = kMaxThreadsPerBlock;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->major = 9;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return result(cudaErrorInvalidValue);
  *version = driver_state() == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return result(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (const cudaError_t forbidden = forbid_during_capture(); forbidden != cudaSuccess)
    return result(forbidden);
  for (const auto& queue : streams_of(current_device())) queue->wait_idle();
  return result(device_error(current_device()));
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  BRIGADE_RETURN_UNLESS_USABLE();
  if (free_bytes == nullptr || total_bytes == nullptr) return result(cudaErrorInvalidValue);
  *total_bytes = device_memory_bytes();
  *free_bytes = *total_bytes - DeviceMemory::instance().bytes_in_use(current_device());
  return cudaSuccess;
}
