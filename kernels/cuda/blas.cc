#include "kernels/cuda/blas.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/check.h"
#include "kernels/core/status.h"

namespace brigade::kernels::cuda {
namespace {

// What NVIDIA recommends for Hopper; more than older GPUs need.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

template <typename... Arguments>
absl::Status blas_status(cublasStatus_t status, const char* call, const Arguments&... arguments) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED ? absl::StatusCode::kResourceExhausted
                                                         : absl::StatusCode::kInternal;
  return absl::Status(
      code, absl::StrCat(call, "(", absl::StrCat(arguments...), "): ", cublasGetStatusName(status),
                         ": ", cublasGetStatusString(status)));
}

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kI32:
      break;
  }
  check_failed("products are of f32, bf16 or f16", __FILE__, __LINE__);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Blas>> Blas::create(Device& device, cudaStream_t stream) {
  ASSIGN_OR_RETURN(Buffer workspace, Buffer::allocate(device, kWorkspaceBytes));
  cublasHandle_t handle = nullptr;
  RETURN_IF_ERROR(blas_status(cublasCreate(&handle), "cublasCreate", device.name()));
  std::unique_ptr<Blas> blas(new Blas(handle, std::move(workspace)));
  RETURN_IF_ERROR(blas_status(cublasSetStream(handle, stream), "cublasSetStream"));
  RETURN_IF_ERROR(blas_status(cublasSetWorkspace(handle, blas->workspace_.data(), kWorkspaceBytes),
                              "cublasSetWorkspace", kWorkspaceBytes, " bytes"));
  return blas;
}

Blas::Blas(cublasHandle_t handle, Buffer workspace)
    : handle_(handle), workspace_(std::move(workspace)), arrays_(std::make_unique<GroupArrays>()) {
  arrays_->transposed.fill(CUBLAS_OP_T);
  arrays_->plain.fill(CUBLAS_OP_N);
  arrays_->size.fill(1);
  arrays_->alpha.fill(1.0f);
  arrays_->beta.fill(0.0f);
}

Blas::~Blas() { cublasDestroy(handle_); }

// The library counts columns first: row-major w [outputs, k] is its k x outputs, to be transposed,
// x its k x rows, y its outputs x rows.
absl::Status Blas::product(DType dtype, const BlasShape& shape, const void* x, const void* weights,
                           DType y_dtype, void* y, bool accumulate) {
  const float one = 1, beta = accumulate ? 1 : 0;
  const cudaDataType_t type = data_type(dtype);
  return blas_status(
      cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, shape.outputs, shape.rows, shape.k, &one,
                   weights, type, static_cast<int>(shape.weight_stride), x, type,
                   static_cast<int>(shape.x_stride), &beta, y, data_type(y_dtype),
                   static_cast<int>(shape.y_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "cublasGemmEx", dtype_name(dtype), ", outputs ", shape.outputs, ", rows ", shape.rows, ", k ",
      shape.k);
}

absl::Status Blas::products(DType dtype, const BlasShape* shapes, int count, const void* const* x,
                            const void* const* weights, void* const* y) {
  CHECK(count <= kMaxBlasGroups);
  GroupArrays& arrays = *arrays_;
  for (int g = 0; g < count; ++g) {
    arrays.m[g] = shapes[g].outputs;
    arrays.n[g] = shapes[g].rows;
    arrays.k[g] = shapes[g].k;
    arrays.lda[g] = static_cast<int>(shapes[g].weight_stride);
    arrays.ldb[g] = static_cast<int>(shapes[g].x_stride);
    arrays.ldc[g] = static_cast<int>(shapes[g].y_stride);
  }
  const cudaDataType_t type = data_type(dtype);
  return blas_status(cublasGemmGroupedBatchedEx(
                         handle_, arrays.transposed.data(), arrays.plain.data(), arrays.m.data(),
                         arrays.n.data(), arrays.k.data(), arrays.alpha.data(), weights, type,
                         arrays.lda.data(), x, type, arrays.ldb.data(), arrays.beta.data(), y, type,
                         arrays.ldc.data(), count, arrays.size.data(), CUBLAS_COMPUTE_32F),
                     "cublasGemmGroupedBatchedEx", dtype_name(dtype), ", ", count,
                     " groups, the first with outputs ", shapes[0].outputs, ", rows ",
                     shapes[0].rows, ", k ", shapes[0].k);
}

}  // namespace brigade::kernels::cuda
