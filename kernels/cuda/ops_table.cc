#include "kernels/cuda/ops_table.h"

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fast_math.h"

namespace brigade::kernels::cuda {
namespace {

// Wraps a launcher: its error becomes a status that names the op.
template <auto launcher, typename Args>
absl::Status run(CudaStream& stream, const Args& args) {
  const cudaError_t error = launcher(static_cast<cudaStream_t>(stream.native()), args);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // no later query of this thread, nor a library's, finds it again
  return absl::InternalError(absl::StrCat(entry(stream.ops(), args).name, ": ",
                                          cudaGetErrorName(error), ": ",
                                          cudaGetErrorString(error)));
}

// What a checked call can lack is a block's shared memory, which bounds the size of a head.
template <auto launcher>
absl::Status run_attention(CudaStream& stream, const PagedAttentionArgs& args) {
  const absl::Status status = run<launcher, PagedAttentionArgs>(stream, args);
  if (status.ok()) return status;
  const size_t needed = plan_attention(args).shared_bytes, most = most_shared_memory();
  if (most == 0 || needed <= most) return status;
  return absl::FailedPreconditionError(
      absl::StrCat("paged_attention: a head of ", args.cache.head_dim, " needs ", needed,
                   " bytes of shared memory a block; ", stream.device().name(), " has ", most));
}

CudaOps identical_table() {
  CudaOps table;
  table.embedding = run<embedding, EmbeddingArgs>;
  table.rms_norm = run<rms_norm, RmsNormArgs>;
  table.rope_kv_write = run<rope_kv_write, RopeKvWriteArgs>;
  table.gather_rows = run<gather_rows, GatherRowsArgs>;
  table.paged_attention = run_attention<paged_attention>;
  table.attention_scratch_bytes = attention_scratch_bytes;
  table.router_top_k = run<router_top_k, RouterTopKArgs>;
  table.combine = run<combine, CombineArgs>;
  table.matmul = run<matmul, MatmulArgs>;
  table.expert_ffn = run<expert_ffn, ExpertFfnArgs>;
  table.expert_ffn_scratch_bytes = expert_ffn_scratch_bytes;
  table.group_terms = run<group_terms, GroupTermsArgs>;
  table.argmax_rows = run<argmax_rows, ArgmaxRowsArgs>;
  table.policy = run<policy, PolicyArgs>;
  table.accept_drafts = run<accept_drafts, AcceptDraftsArgs>;
  return table;
}

// What differs from the identical table; the rest is shared.
CudaOps fast_table() {
  CudaOps table = identical_table();
  table.paged_attention = run_attention<paged_attention_fast>;
  table.matmul = fast_matmul;
  table.expert_ffn = fast_expert_ffn;
  table.expert_ffn_scratch_bytes = fast_expert_ffn_scratch_bytes;
  return table;
}

}  // namespace

const CudaOps& ops_table(CudaMath math) {
  static const CudaOps identical = identical_table();
  static const CudaOps fast = fast_table();
  return math == CudaMath::kFast ? fast : identical;
}

}  // namespace brigade::kernels::cuda
