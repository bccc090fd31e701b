#include "kernels/cpu/expert_ffn.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/moe.h"

namespace brigade::kernels {
namespace {

absl::Status group_error(int g, const char* sentence) {
  return absl::InvalidArgumentError(absl::StrCat("expert_ffn: groups[", g, "] ", sentence));
}

absl::Status check_group(const Device& device, const ExpertFfnArgs& args, int g) {
  const ExpertGroup& group = args.groups[g];
  if (group.count == 0) return absl::OkStatus();
  if (group.count < 0) return group_error(g, "has a negative count");
  if (group.first < 0 || group.first > args.total - group.count) {
    return group_error(g, "reaches outside the call's rows");
  }
  const ExpertWeights& weights = group.weights;
  if (weights.ffn <= 0) return group_error(g, "has no ffn size");
  if (weights.gate_up.k != args.hidden ||
      weights.gate_up.outputs != gate_up_outputs(weights.gate_up.format, weights.ffn)) {
    return group_error(g, "has a gate_up that is not [gate_up_outputs(), hidden]");
  }
  if (weights.down.k != weights.ffn || weights.down.outputs != args.hidden) {
    return group_error(g, "has a down that is not [hidden, ffn]");
  }
  if (weights.gate_up.format != weights.down.format) {
    return group_error(g, "has gate_up and down of different formats");
  }
  RETURN_IF_ERROR(check_layout("expert_ffn", device, weights.gate_up.format));
  for (const void* data : {weights.gate_up.data, weights.down.data}) {
    if (data == nullptr) return group_error(g, "has weights that are null");
    if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
      return group_error(g, "has weights that are not 64-byte aligned");
    }
  }
  return absl::OkStatus();
}

absl::Status check(const Stream& stream, const ExpertFfnArgs& args) {
  RETURN_IF_ERROR(check_at_least("expert_ffn", "num_groups", args.num_groups, 0));
  RETURN_IF_ERROR(check_at_least("expert_ffn", "total", args.total, 0));
  if (args.num_groups == 0 || args.total == 0) return absl::OkStatus();
  RETURN_IF_ERROR(check_positive("expert_ffn", "hidden", args.hidden));
  RETURN_IF_ERROR(check_pointer("expert_ffn", "x", args.x));
  RETURN_IF_ERROR(check_pointer("expert_ffn", "out", args.out));
  RETURN_IF_ERROR(check_pointer("expert_ffn", "groups", args.groups));
  RETURN_IF_ERROR(check_pointer("expert_ffn", "scratch", args.scratch));
  RETURN_IF_ERROR(check_that(args.out_dtype == DType::kF32 || args.out_dtype == DType::kBF16,
                             "expert_ffn", "out_dtype is neither f32 nor bf16"));
  int max_ffn = 0;
  int64_t rows = 0;
  for (int g = 0; g < args.num_groups; ++g) {
    RETURN_IF_ERROR(check_group(stream.device(), args, g));
    rows += args.groups[g].count;
    max_ffn = std::max(max_ffn, args.groups[g].count > 0 ? args.groups[g].weights.ffn : 0);
  }
  RETURN_IF_ERROR(check_that(rows <= args.total, "expert_ffn",
                             "the groups' counts add up to more rows than total"));
  RETURN_IF_ERROR(check_that(reinterpret_cast<uintptr_t>(args.scratch) % 64 == 0, "expert_ffn",
                             "scratch is not 64-byte aligned"));
  const size_t needed = expert_ffn_scratch_bytes(stream.device(), args.total, args.hidden, max_ffn);
  return check_that(args.scratch_bytes >= needed, "expert_ffn",
                    "scratch_bytes is smaller than expert_ffn_scratch_bytes()");
}

int64_t bytes_of(const PackedMatrix& matrix) {
  return static_cast<int64_t>(packed_bytes(matrix.format, matrix.outputs, matrix.k));
}

void visit(ExpertFfnArgs& args, PointerVisitor& visitor) {
  const int64_t index_bytes = args.total * static_cast<int64_t>(sizeof(int32_t));
  const int64_t row_bytes = int64_t{args.hidden} * static_cast<int64_t>(sizeof(float));
  const int64_t answer_bytes =
      int64_t{args.hidden} * static_cast<int64_t>(dtype_bytes(args.out_dtype));
  // With an index the rows that are touched are known on the device only.
  visitor.device(args.x, args.row_index == nullptr ? args.total * row_bytes : row_bytes,
                 "expert_ffn: x");
  visitor.device(args.out, args.out_index == nullptr ? args.total * answer_bytes : answer_bytes,
                 "expert_ffn: out");
  visitor.device(args.row_index, index_bytes, "expert_ffn: row_index");
  visitor.device(args.out_index, index_bytes, "expert_ffn: out_index");
  visitor.device(args.scratch, static_cast<int64_t>(args.scratch_bytes), "expert_ffn: scratch");
  ExpertGroup* groups = visitor.host_copy(args.groups, static_cast<size_t>(args.num_groups));
  for (int g = 0; g < args.num_groups; ++g) {
    if (groups[g].count == 0) continue;
    ExpertWeights& weights = groups[g].weights;
    visitor.device(weights.gate_up.data, bytes_of(weights.gate_up), "expert_ffn: gate_up");
    visitor.device(weights.down.data, bytes_of(weights.down), "expert_ffn: down");
  }
}

}  // namespace

absl::Status expert_ffn(Stream& stream, const ExpertFfnArgs& args) {
  RETURN_IF_ERROR(check(stream, args));
  if (args.num_groups == 0 || args.total == 0) return absl::OkStatus();
  return dispatch(stream, args, cpu::expert_ffn, visit);
}

size_t expert_ffn_scratch_bytes(const Device& device, int max_total, int hidden, int max_ffn) {
  if (const CudaOps* cuda = cuda_ops(device)) {
    if (cuda->expert_ffn_scratch_bytes == nullptr) return 0;  // the op will say that it has no kernel
    return cuda->expert_ffn_scratch_bytes(max_total, hidden, max_ffn);
  }
  return cpu::expert_ffn_scratch_bytes(max_total, max_ffn);
}

}  // namespace brigade::kernels
