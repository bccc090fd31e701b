// Included before each CUDA source that the host compiler builds (-include): CUDA's own headers,
// the keywords of CUDA C++ as nothing, the built-in variables and device functions as emulation.
// Shared memory has to be declared with gpu.cuh's macros: `__shared__` itself does not compile
// here, because a variable behind it could be neither poisoned nor fenced.
#pragma once

#ifndef __CUDACC__

#include <cuda_runtime.h>
// All of CUDA's headers come before the keywords are taken away.
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ \
  static_assert(false, "declare shared memory with GPU_SHARED or GPU_DYNAMIC_SHARED");
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

#include "tests/cuda_emulation/shim/atomics.h"
#include "tests/cuda_emulation/shim/device_math.h"
#include "tests/cuda_emulation/shim/device_thread.h"
#include "tests/cuda_emulation/shim/kernel_launch.h"
#include "tests/cuda_emulation/shim/warp_ops.h"
#include "tests/cuda_emulation/shim/wmma.h"

// gpu.cuh's macros. Every thread that passes the line gets the same memory.
#define GPU_SHARED(Type, name, count)                                             \
  static constexpr char name##_key = 0;                                           \
  Type* const name = static_cast<Type*>(::brigade::cuda_emulation::static_shared( \
      sizeof(Type) * (count), alignof(Type), &name##_key))
#define GPU_DYNAMIC_SHARED(Type, name) \
  Type* const name = static_cast<Type*>(::brigade::cuda_emulation::dynamic_shared())

#endif  // __CUDACC__
