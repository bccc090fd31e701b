// One column-major matrix product of the cuBLAS stand-in: what may be asked for, and doing it. The
// order of accumulation follows from the shape, as it may in the library: whoever relies on it
// being the same for 1 and for 64 columns is found out. A stream's thread computes.
#pragma once

#include <cublas_v2.h>

#include <cstdint>
#include <string>

namespace brigade::cuda_emulation {

// C[m, n] = alpha * op(A)[m, k] * op(B)[k, n] + beta * C; all column-major with leading dimensions.
struct GemmProblem {
  cublasOperation_t op_a, op_b;
  int m, n, k;
  float alpha, beta;
  const void* a;
  const void* b;
  void* c;
  int lda, ldb, ldc;
};

struct GemmTypes {
  cudaDataType_t a, b, c;
  cublasComputeType_t compute;
};

// CUBLAS_STATUS_NOT_SUPPORTED for combinations the library has no entry for. `grouped`: A, B and C
// of one type.
cublasStatus_t check_types(const GemmTypes& types, bool grouped);
// CUBLAS_STATUS_INVALID_VALUE for negative extents, too short leading dimensions and unknown
// operations.
cublasStatus_t check_shape(const GemmProblem& problem);
size_t type_bytes(cudaDataType_t type);

// Empty, or why this would be a fault on the device: memory that is not the device's or too short,
// addresses not aligned to `alignment` bytes.
std::string check_memory(const GemmProblem& problem, const GemmTypes& types, size_t alignment);
void compute_product(const GemmProblem& problem, const GemmTypes& types);

}  // namespace brigade::cuda_emulation
