#include "kernels/ops/kv_layer_check.h"

namespace brigade::kernels {

absl::Status check_kv_layer(const char* op, const KvLayerView& cache) {
  RETURN_IF_ERROR(check_pointer(op, "cache.data", cache.data));
  RETURN_IF_ERROR(check_positive(op, "cache.num_blocks", cache.num_blocks));
  RETURN_IF_ERROR(check_positive(op, "cache.block_size", cache.block_size));
  RETURN_IF_ERROR(check_positive(op, "cache.kv_heads", cache.kv_heads));
  RETURN_IF_ERROR(check_positive(op, "cache.head_dim", cache.head_dim));
  RETURN_IF_ERROR(check_that(cache.head_dim <= kMaxHeadDim, op, "cache.head_dim is above 1024"));
  RETURN_IF_ERROR(
      check_that(cache.dtype != DType::kI32, op, "cache.dtype must be f32, bf16 or f16"));
  RETURN_IF_ERROR(
      check_that(cache.block_stride_bytes % static_cast<int64_t>(dtype_bytes(cache.dtype)) == 0, op,
                 "cache.block_stride_bytes is not a multiple of the element size"));
  return check_at_least(op, "cache.block_stride_bytes", cache.block_stride_bytes,
                        static_cast<int64_t>(cache.layer_bytes()));
}

void visit_kv_layer(KvLayerView& cache, PointerVisitor& pointers) {
  const int64_t bytes =
      (cache.num_blocks - 1) * cache.block_stride_bytes + static_cast<int64_t>(cache.layer_bytes());
  pointers.device(cache.data, bytes, "cache.data");
}

}  // namespace brigade::kernels
