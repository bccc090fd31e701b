// What a stream keeps in mode fast, and the ops that differ there. Weights are row-major
// (weight_layout() of kernels/ops): few rows stream them (row_stream.cu), many go to cuBLAS in the
// weights' dtype with sums in f32. Which of the two a row meets, and what the library does with it,
// depends on how many share the call: bits may differ between batches. The stream's thread.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/device_cuda.h"
#include "kernels/cuda/blas.h"
#include "kernels/ops/dense_args.h"
#include "kernels/ops/moe_args.h"

namespace brigade::kernels::cuda {

// From this many rows of a matrix on the library takes over: below, each further 8 rows of the
// streaming kernel read the weights again. Not yet measured on hardware.
inline constexpr int kFirstBlasCount = 17;
// Narrower matrices are always streamed, with x in f32: they are routers, where a rounding of x
// would choose other experts.
inline constexpr int kLeastBlasOutputs = 257;

class FastMath {
 public:
  // Rows of x that a product of 16-bit weights takes at a time are bounded by this.
  static constexpr size_t kRowBytes = size_t{16} << 20;

  static absl::StatusOr<std::unique_ptr<FastMath>> create(Device& device, cudaStream_t stream);
  Blas& blas() { return *blas_; }
  void* rows() const { return rows_.data(); }  // of a matmul, rounded to 16 bits

 private:
  std::unique_ptr<Blas> blas_;
  Buffer rows_;
};

// The product by cuBLAS, without bias, whatever its sizes. Weights are rows.
absl::Status library_matmul(CudaStream& stream, const MatmulArgs& args);

// Panels go through the kernels of mode identical.
absl::Status fast_matmul(CudaStream& stream, const MatmulArgs& args);
absl::Status fast_expert_ffn(CudaStream& stream, const ExpertFfnArgs& args);
size_t fast_expert_ffn_scratch_bytes(int max_total, int hidden, int max_ffn);

}  // namespace brigade::kernels::cuda
