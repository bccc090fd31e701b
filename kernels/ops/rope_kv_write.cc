#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/kv_layer_check.h"
#include "kernels/ops/strided_extent.h"

namespace brigade::kernels {
namespace {

constexpr char kOp[] = "rope_kv_write";

absl::Status check(const RopeKvWriteArgs& args) {
  RETURN_IF_ERROR(check_at_least(kOp, "rows", args.rows, 0));
  RETURN_IF_ERROR(check_kv_layer(kOp, args.cache));
  const int64_t head_dim = args.cache.head_dim;
  RETURN_IF_ERROR(check_positive(kOp, "heads", args.heads));
  RETURN_IF_ERROR(check_at_least(kOp, "rotary_dim", args.rotary_dim, 0));
  RETURN_IF_ERROR(check_that(args.rotary_dim % 2 == 0, kOp, "rotary_dim is odd"));
  RETURN_IF_ERROR(check_that(args.rotary_dim <= head_dim, kOp, "rotary_dim is above head_dim"));
  RETURN_IF_ERROR(check_positive(kOp, "max_positions", args.max_positions));
  RETURN_IF_ERROR(check_at_least(kOp, "q_stride", args.q_stride, args.heads * head_dim));
  RETURN_IF_ERROR(check_at_least(kOp, "k_stride", args.k_stride, args.cache.kv_heads * head_dim));
  RETURN_IF_ERROR(check_at_least(kOp, "v_stride", args.v_stride, args.cache.kv_heads * head_dim));
  RETURN_IF_ERROR(check_pointer(kOp, "q", args.q));
  RETURN_IF_ERROR(check_pointer(kOp, "k", args.k));
  RETURN_IF_ERROR(check_pointer(kOp, "v", args.v));
  RETURN_IF_ERROR(check_pointer(kOp, "positions", args.positions));
  RETURN_IF_ERROR(check_pointer(kOp, "slots", args.slots));
  if (args.rotary_dim == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check_pointer(kOp, "cos_table", args.cos_table));
  return check_pointer(kOp, "sin_table", args.sin_table);
}

void visit(RopeKvWriteArgs& args, PointerVisitor& pointers) {
  const int64_t q_width = int64_t{args.heads} * args.cache.head_dim;
  const int64_t kv_width = int64_t{args.cache.kv_heads} * args.cache.head_dim;
  const int64_t table_bytes = int64_t{4} * args.max_positions * (args.rotary_dim / 2);
  pointers.device(args.q, strided_bytes(args.rows, args.q_stride, q_width, 4), "q");
  pointers.device(args.k, strided_bytes(args.rows, args.k_stride, kv_width, 4), "k");
  pointers.device(args.v, strided_bytes(args.rows, args.v_stride, kv_width, 4), "v");
  pointers.device(args.positions, int64_t{4} * args.rows, "positions");
  pointers.device(args.slots, int64_t{8} * args.rows, "slots");
  pointers.device(args.cos_table, table_bytes, "cos_table");
  pointers.device(args.sin_table, table_bytes, "sin_table");
  visit_kv_layer(args.cache, pointers);
}

}  // namespace

absl::Status rope_kv_write(Stream& stream, const RopeKvWriteArgs& args) {
  if (args.rows == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check(args));
  return dispatch(stream, args, &cpu::rope_kv_write, &visit);
}

}  // namespace brigade::kernels
