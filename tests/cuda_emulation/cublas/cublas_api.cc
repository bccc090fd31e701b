// Stand-ins for the cuBLAS calls in use, by their real names. Scalars are read on the host when a
// call is made; products run on the handle's stream.
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <vector>

#include "tests/cuda_emulation/cublas/gemm_product.h"
#include "tests/cuda_emulation/runtime/device_memory.h"
#include "tests/cuda_emulation/runtime/devices.h"
#include "tests/cuda_emulation/runtime/errors.h"
#include "tests/cuda_emulation/runtime/handles.h"
#include "tests/cuda_emulation/runtime/stream_queue.h"

using namespace brigade::cuda_emulation;

// What the headers only name.
struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

namespace {

Handles<cublasHandle_t>& contexts() { return live_handles<cublasHandle_t>(); }

cublasStatus_t status_of(cudaError_t error) {
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

void run_product(const GemmProblem& problem, const GemmTypes& types, size_t alignment, int device) {
  const std::string wrong = check_memory(problem, types, alignment);
  if (!wrong.empty()) {
    const bool misaligned = wrong.find("aligned") != std::string::npos;
    fail_device(device, misaligned ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress,
                "cuBLAS: " + wrong);
    return;
  }
  compute_product(problem, types);
}

// Checks what the library checks, then queues `batch` products that lie a stride apart.
cublasStatus_t enqueue(cublasHandle_t handle, GemmProblem problem, const GemmTypes& types,
                       int batch, const long long (&strides)[3]) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (batch < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t wrong = check_shape(problem); wrong != CUBLAS_STATUS_SUCCESS)
    return wrong;
  if (const cublasStatus_t wrong = check_types(types, false); wrong != CUBLAS_STATUS_SUCCESS)
    return wrong;
  if (problem.m == 0 || problem.n == 0 || batch == 0) return CUBLAS_STATUS_SUCCESS;
  if (problem.c == nullptr || (problem.k > 0 && (problem.a == nullptr || problem.b == nullptr))) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int device = handle->device;
  const long long stride_a = strides[0] * static_cast<long long>(type_bytes(types.a));
  const long long stride_b = strides[1] * static_cast<long long>(type_bytes(types.b));
  const long long stride_c = strides[2] * static_cast<long long>(type_bytes(types.c));
  return status_of(submit(handle->stream, {.run = [=] {
                            ++count().library_calls;
                            for (int i = 0; i < batch; ++i) {
                              GemmProblem one = problem;
                              one.a = static_cast<const char*>(problem.a) + i * stride_a;
                              one.b = static_cast<const char*>(problem.b) + i * stride_b;
                              one.c = static_cast<char*>(problem.c) + i * stride_c;
                              run_product(one, types, 1, device);
                            }
                          }}));
}

struct Groups {
  std::vector<GemmProblem> problems;  // without addresses, one a group
  std::vector<int> sizes;
  const void* const* a;
  const void* const* b;
  void* const* c;
};

// The arrays of addresses are device memory: they are read when the stream gets there.
void run_groups(const Groups& groups, const GemmTypes& types, int device) {
  ++count().library_calls;
  size_t total = 0;
  for (const int size : groups.sizes) total += static_cast<size_t>(size);
  for (const void* array : {static_cast<const void*>(groups.a), static_cast<const void*>(groups.b),
                            static_cast<const void*>(groups.c)}) {
    if (!DeviceMemory::instance().holds(MemoryKind::kDevice, array, total * sizeof(void*))) {
      fail_device(device, cudaErrorIllegalAddress,
                  "cuBLAS: an array of matrix addresses is not device memory");
      return;
    }
  }
  size_t index = 0;
  for (size_t group = 0; group < groups.sizes.size(); ++group) {
    for (int i = 0; i < groups.sizes[group]; ++i, ++index) {
      GemmProblem one = groups.problems[group];
      one.a = groups.a[index];
      one.b = groups.b[index];
      one.c = groups.c[index];
      if (one.m > 0 && one.n > 0) run_product(one, types, 16, device);
    }
  }
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* out) {
  if (out == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (usable() != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *out = new cublasContext{.device = current_device()};
  contexts().add(*out);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  if (!contexts().remove(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int* version) {
  if (version == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (handle != nullptr && !contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!stream_exists(stream) || stream_device(stream) != handle->device)
    return CUBLAS_STATUS_INVALID_VALUE;
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool usable_memory =
      bytes == 0 || (DeviceMemory::instance().holds(MemoryKind::kDevice, workspace, bytes) &&
                     reinterpret_cast<uintptr_t>(workspace) % 256 == 0);
  return usable_memory ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  handle->math = mode;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t) {
  return contexts().has(handle) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_UNKNOWN";
  }
}

const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t op_a,
                                          cublasOperation_t op_b, int m, int n, int k,
                                          const void* alpha, const void* a, cudaDataType a_type,
                                          int lda, long long stride_a, const void* b,
                                          cudaDataType b_type, int ldb, long long stride_b,
                                          const void* beta, void* c, cudaDataType c_type, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const GemmProblem problem{op_a,
                            op_b,
                            m,
                            n,
                            k,
                            *static_cast<const float*>(alpha),
                            *static_cast<const float*>(beta),
                            a,
                            b,
                            c,
                            lda,
                            ldb,
                            ldc};
  return enqueue(handle, problem, {a_type, b_type, c_type, compute}, batch,
                 {stride_a, stride_b, stride_c});
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b,
                            int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                            int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, a_type, lda, 0, b,
                                    b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algo);
}

cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t op_a[], const cublasOperation_t op_b[],
    const int m[], const int n[], const int k[], const void* alphas, const void* const a[],
    cudaDataType_t a_type, const int lda[], const void* const b[], cudaDataType_t b_type,
    const int ldb[], const void* betas, void* const c[], cudaDataType_t c_type, const int ldc[],
    int group_count, const int group_size[], cublasComputeType_t compute) {
  if (!contexts().has(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (group_count < 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (group_count == 0) return CUBLAS_STATUS_SUCCESS;
  for (const void* array :
       {static_cast<const void*>(op_a), static_cast<const void*>(op_b), static_cast<const void*>(m),
        static_cast<const void*>(n), static_cast<const void*>(k), alphas, betas,
        static_cast<const void*>(lda), static_cast<const void*>(ldb), static_cast<const void*>(ldc),
        static_cast<const void*>(group_size)}) {
    if (array == nullptr || DeviceMemory::instance().in_device_range(array))
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  const GemmTypes types{a_type, b_type, c_type, compute};
  if (const cublasStatus_t wrong = check_types(types, true); wrong != CUBLAS_STATUS_SUCCESS)
    return wrong;
  Groups groups{{}, {group_size, group_size + group_count}, a, b, c};
  for (int i = 0; i < group_count; ++i) {
    const GemmProblem problem{op_a[i],
                              op_b[i],
                              m[i],
                              n[i],
                              k[i],
                              static_cast<const float*>(alphas)[i],
                              static_cast<const float*>(betas)[i],
                              nullptr,
                              nullptr,
                              nullptr,
                              lda[i],
                              ldb[i],
                              ldc[i]};
    if (group_size[i] < 0) return CUBLAS_STATUS_INVALID_VALUE;
    if (const cublasStatus_t wrong = check_shape(problem); wrong != CUBLAS_STATUS_SUCCESS)
      return wrong;
    groups.problems.push_back(problem);
  }
  return status_of(submit(handle->stream, {.run = [=, device = handle->device] {
                            run_groups(groups, types, device);
                          }}));
}
