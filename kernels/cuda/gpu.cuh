// What every kernel file includes: CUDA's headers, the launch of a kernel, and dynamic shared
// memory. The same sources are compiled by nvcc and, for the tests without a GPU, by the host
// compiler with tests/cuda_emulation included first; this header is the only place that knows of
// both.
//
// Numerics: compiled without contraction and without fast maths. Sums that reach a token are
// written as
// __fmaf_rn and __fadd_rn chains in the order of kernels/README.md, so that a GPU gives the CPU's
// bits.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)

// Dynamic shared memory of the block as an array of T, 128-byte aligned: fragments of nvcuda::wmma
// are loaded from and stored to multiples of 32. Once a kernel.
#define GPU_DYNAMIC_SHARED(T, name)                            \
  extern __shared__ __align__(128) unsigned char name##_raw[]; \
  T* const name = reinterpret_cast<T*>(name##_raw)

// A variable of the block: `count` objects of T. `__shared__` itself is not used: the emulation could
// neither poison nor fence what stands behind it.
#define GPU_SHARED(T, name, count) __shared__ T name[count]

namespace brigade::kernels::cuda {

// Enqueues a kernel. The arguments are converted to the kernel's parameter types.
template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

}  // namespace brigade::kernels::cuda

#else

// The emulation defines GPU_DYNAMIC_SHARED, GPU_SHARED and brigade::cuda_emulation::launch.
#ifndef GPU_DYNAMIC_SHARED
#error "compile CUDA sources with nvcc, or with the emulation's header included first"
#endif
namespace brigade::kernels::cuda {
using cuda_emulation::launch;
}  // namespace brigade::kernels::cuda

#endif

namespace brigade::kernels::cuda {

inline constexpr int kWarp = 32;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace brigade::kernels::cuda
