// How a stand-in call ends: each thread's last error, and the error of a device after a fault,
// which every later call returns. Any thread.
#pragma once

#include <driver_types.h>

#include <string>

namespace brigade::cuda_emulation {

// Notes an error for cudaGetLastError and hands it on.
cudaError_t result(cudaError_t error);

// cudaSuccess, or why no call can succeed: no driver, no device, a fault on this thread's device,
// or a host function of a stream, which must not call the runtime.
cudaError_t usable();
// Calls what cudaLaunchHostFunc was given.
void run_host_function(void (*function)(void*), void* data);

// A kernel or copy has failed: says so on stderr; from now on every call about `device` fails.
// The first error stays.
void fail_device(int device, cudaError_t error, const std::string& message);
cudaError_t device_error(int device);

}  // namespace brigade::cuda_emulation

// Leaves the call when it cannot succeed.
#define BRIGADE_RETURN_UNLESS_USABLE()                                                             \
  if (const cudaError_t unusable = ::brigade::cuda_emulation::usable(); unusable != cudaSuccess) { \
    return ::brigade::cuda_emulation::result(unusable);                                            \
  }
