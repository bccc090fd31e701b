// The launchers behind the module's table of ops: one .cu file each. They enqueue on the stream and
// return the launch's error; arguments were checked by kernels/ops. Seen by host and device
// compilers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/ops/attention_args.h"
#include "kernels/ops/dense_args.h"
#include "kernels/ops/moe_args.h"
#include "kernels/ops/sampling_args.h"

namespace brigade::kernels::cuda {

cudaError_t embedding(cudaStream_t stream, const EmbeddingArgs& args);
cudaError_t rms_norm(cudaStream_t stream, const RmsNormArgs& args);
cudaError_t rope_kv_write(cudaStream_t stream, const RopeKvWriteArgs& args);
cudaError_t gather_rows(cudaStream_t stream, const GatherRowsArgs& args);
cudaError_t router_top_k(cudaStream_t stream, const RouterTopKArgs& args);
cudaError_t combine(cudaStream_t stream, const CombineArgs& args);
cudaError_t group_terms(cudaStream_t stream, const GroupTermsArgs& args);
cudaError_t argmax_rows(cudaStream_t stream, const ArgmaxRowsArgs& args);
cudaError_t policy(cudaStream_t stream, const PolicyArgs& args);
cudaError_t accept_drafts(cudaStream_t stream, const AcceptDraftsArgs& args);

cudaError_t matmul(cudaStream_t stream, const MatmulArgs& args);
cudaError_t expert_ffn(cudaStream_t stream, const ExpertFfnArgs& args);
size_t expert_ffn_scratch_bytes(int max_total, int hidden, int max_ffn);

cudaError_t paged_attention(cudaStream_t stream, const PagedAttentionArgs& args);
// On tensor cores where that pays; bits depend on the rows of the call.
cudaError_t paged_attention_fast(cudaStream_t stream, const PagedAttentionArgs& args);
size_t attention_scratch_bytes(int max_rows, int heads, int head_dim);

}  // namespace brigade::kernels::cuda
