#include "tests/cuda_emulation/cublas/gemm_product.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/core/half.h"
#include "tests/cuda_emulation/runtime/device_memory.h"

namespace brigade::cuda_emulation {
namespace {

float load(const void* base, cudaDataType_t type, size_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(base)[index];
  const uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return type == CUDA_R_16BF ? kernels::bf16_to_f32(bits) : kernels::f16_to_f32(bits);
}

void store(void* base, cudaDataType_t type, size_t index, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(base)[index] = value;
  } else {
    static_cast<uint16_t*>(base)[index] =
        type == CUDA_R_16BF ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
  }
}

// TF32 keeps 10 bits of the mantissa.
float to_tf32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7F800000u) == 0x7F800000u) return value;
  return std::bit_cast<float>((bits + 0xFFFu + ((bits >> 13) & 1u)) & ~0x1FFFu);
}

// op(matrix) as [rows, columns] floats, column by column.
std::vector<float> unpacked(const void* matrix, cudaDataType_t type, cublasOperation_t op, int rows,
                            int columns, int leading, bool tf32) {
  std::vector<float> out(static_cast<size_t>(rows) * columns);
  for (int column = 0; column < columns; ++column) {
    for (int row = 0; row < rows; ++row) {
      const size_t index = op == CUBLAS_OP_N ? static_cast<size_t>(column) * leading + row
                                             : static_cast<size_t>(row) * leading + column;
      const float value = load(matrix, type, index);
      out[static_cast<size_t>(column) * rows + row] = tf32 ? to_tf32(value) : value;
    }
  }
  return out;
}

// Into how many parts K is cut, each summed on its own: the fewer columns, the more.
int parts_of_k(const GemmProblem& problem) {
  return problem.n == 1 ? 4 : problem.n < 4 ? 3 : problem.n < 8 ? 2 : 1;
}

struct Extent {
  const void* base;
  size_t bytes;
  const char* name;
};

size_t matrix_bytes(int rows, int columns, int leading, cudaDataType_t type) {
  if (rows == 0 || columns == 0) return 0;
  return (static_cast<size_t>(columns - 1) * leading + rows) * type_bytes(type);
}

}  // namespace

size_t type_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

cublasStatus_t check_types(const GemmTypes& types, bool grouped) {
  const bool known = types.a == CUDA_R_32F || types.a == CUDA_R_16BF || types.a == CUDA_R_16F;
  if (!known || types.b != types.a) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (types.c != types.a && (grouped || types.c != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
  switch (types.compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return CUBLAS_STATUS_SUCCESS;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return types.a == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t check_shape(const GemmProblem& problem) {
  const auto is_known = [](cublasOperation_t op) {
    return op == CUBLAS_OP_N || op == CUBLAS_OP_T || op == CUBLAS_OP_C;
  };
  if (problem.m < 0 || problem.n < 0 || problem.k < 0 || !is_known(problem.op_a) ||
      !is_known(problem.op_b)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const int rows_a = problem.op_a == CUBLAS_OP_N ? problem.m : problem.k;
  const int rows_b = problem.op_b == CUBLAS_OP_N ? problem.k : problem.n;
  const bool fits = problem.lda >= std::max(1, rows_a) && problem.ldb >= std::max(1, rows_b) &&
                    problem.ldc >= std::max(1, problem.m);
  return fits ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

std::string check_memory(const GemmProblem& problem, const GemmTypes& types, size_t alignment) {
  if (problem.m == 0 || problem.n == 0) return "";
  const int rows_a = problem.op_a == CUBLAS_OP_N ? problem.m : problem.k;
  const int rows_b = problem.op_b == CUBLAS_OP_N ? problem.k : problem.n;
  const Extent extents[] = {
      {problem.a, matrix_bytes(rows_a, problem.m + problem.k - rows_a, problem.lda, types.a), "A"},
      {problem.b, matrix_bytes(rows_b, problem.n + problem.k - rows_b, problem.ldb, types.b), "B"},
      {problem.c, matrix_bytes(problem.m, problem.n, problem.ldc, types.c), "C"}};
  for (const Extent& extent : extents) {
    if (extent.bytes == 0) continue;
    if (!DeviceMemory::instance().holds(MemoryKind::kDevice, extent.base, extent.bytes)) {
      return std::string("matrix ") + extent.name + " is not " + std::to_string(extent.bytes) +
             " bytes of device memory";
    }
    const size_t needed = std::max(alignment, type_bytes(types.a));
    if (reinterpret_cast<uintptr_t>(extent.base) % needed != 0) {
      return std::string("matrix ") + extent.name + " is not aligned to " + std::to_string(needed) +
             " bytes";
    }
  }
  return "";
}

void compute_product(const GemmProblem& problem, const GemmTypes& types) {
  const auto [op_a, op_b, m, n, k, alpha, beta, a_base, b_base, c_base, lda, ldb, ldc] = problem;
  const bool tf32 = types.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const std::vector<float> a = unpacked(a_base, types.a, op_a, m, k, lda, tf32);
  const std::vector<float> b = unpacked(b_base, types.b, op_b, k, n, ldb, tf32);
  const int parts = parts_of_k(problem);
  std::vector<float> total(m), part(m);
  for (int column = 0; column < n; ++column) {
    std::fill(total.begin(), total.end(), 0.0f);
    for (int p = 0; p < parts; ++p) {
      std::fill(part.begin(), part.end(), 0.0f);
      const int end = static_cast<int>(int64_t{k} * (p + 1) / parts);
      for (int step = static_cast<int>(int64_t{k} * p / parts); step < end; ++step) {
        const float factor = b[static_cast<size_t>(column) * k + step];
        const float* const from = a.data() + static_cast<size_t>(step) * m;
        for (int row = 0; row < m; ++row) part[row] += from[row] * factor;
      }
      for (int row = 0; row < m; ++row) total[row] += part[row];
    }
    for (int row = 0; row < m; ++row) {
      const size_t index = static_cast<size_t>(column) * ldc + row;
      // With beta 0 the library does not read C.
      const float before = beta == 0.0f ? 0.0f : beta * load(c_base, types.c, index);
      store(c_base, types.c, index, alpha * total[row] + before);
    }
  }
}

}  // namespace brigade::cuda_emulation
