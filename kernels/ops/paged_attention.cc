#include "absl/strings/str_cat.h"
#include "kernels/cpu/attention_scratch.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/kv_layer_check.h"
#include "kernels/ops/strided_extent.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "paged_attention";

absl::Status check(const Device& device, const PagedAttentionArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_kv_layer(kOp, args.cache));
  RETURN_IF_ERROR(check_positive(kOp, "heads", args.heads));
  RETURN_IF_ERROR(check_that(args.heads % args.cache.kv_heads == 0, kOp,
                             "heads is not a multiple of cache.kv_heads"));
  const int64_t width = int64_t{args.heads} * args.cache.head_dim;
  RETURN_IF_ERROR(check_at_least(kOp, "q_stride", args.q_stride, width));
  RETURN_IF_ERROR(check_at_least(kOp, "out_stride", args.out_stride, width));
  RETURN_IF_ERROR(check_positive(kOp, "max_blocks", args.max_blocks));
  RETURN_IF_ERROR(check_positive(kOp, "sequences", args.sequences));
  RETURN_IF_ERROR(check_at_least(kOp, "window", args.window, 0));
  RETURN_IF_ERROR(check_that(args.scale > 0, kOp, "scale must be positive"));
  RETURN_IF_ERROR(check_pointer(kOp, "q", args.q));
  RETURN_IF_ERROR(check_pointer(kOp, "block_tables", args.block_tables));
  RETURN_IF_ERROR(check_pointer(kOp, "row_sequence", args.row_sequence));
  RETURN_IF_ERROR(check_pointer(kOp, "row_position", args.row_position));
  RETURN_IF_ERROR(check_pointer(kOp, "out", args.out));
  RETURN_IF_ERROR(check_pointer(kOp, "scratch", args.scratch));
  const size_t needed = attention_scratch_bytes(device, args.rows, args.heads, args.cache.head_dim);
  if (args.scratch_bytes < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": scratch_bytes is ", args.scratch_bytes, "; this call needs ", needed));
  }
  return absl::OkStatus();
}

void visit(PagedAttentionArgs& args, PointerVisitor& pointers) {
  const int64_t width = int64_t{args.heads} * args.cache.head_dim;
  pointers.device(args.q, strided_bytes(args.rows, args.q_stride, width, 4), "q");
  pointers.device(args.block_tables, int64_t{4} * args.sequences * args.max_blocks, "block_tables");
  pointers.device(args.row_sequence, int64_t{4} * args.rows, "row_sequence");
  pointers.device(args.row_position, int64_t{4} * args.rows, "row_position");
  pointers.device(args.out, strided_bytes(args.rows, args.out_stride, width, 4), "out");
  pointers.device(args.scratch, static_cast<int64_t>(args.scratch_bytes), "scratch");
  visit_kv_layer(args.cache, pointers);
}

}  // namespace

absl::Status paged_attention(Stream& stream, const PagedAttentionArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(stream.device(), args));
  return dispatch(stream, args, &cpu::paged_attention, &visit);
}

size_t attention_scratch_bytes(const Device& device, int max_rows, int heads, int head_dim) {
  if (const CudaOps* cuda = cuda_ops(device)) {
    if (cuda->attention_scratch_bytes == nullptr) return 0;  // the op will say that it has no kernel
    return cuda->attention_scratch_bytes(max_rows, heads, head_dim);
  }
  return cpu::AttentionScratch::bytes(max_rows, heads, head_dim, device.num_threads());
}

}  // namespace brigade::kernels
