// The module's kernels, one entry an op, filled by kernels/cuda. Arguments were checked before;
// pointers are device memory. An entry enqueues on the stream and returns; an op without an entry
// is an error. Private to kernels/.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/core/device_cuda.h"
#include "kernels/ops/attention_args.h"
#include "kernels/ops/dense_args.h"
#include "kernels/ops/moe_args.h"
#include "kernels/ops/sampling_args.h"

namespace brigade::kernels {

struct CudaOps {
  template <typename Args>
  using Op = absl::Status (*)(CudaStream&, const Args&);

  Op<EmbeddingArgs> embedding = nullptr;
  Op<RmsNormArgs> rms_norm = nullptr;
  Op<MatmulArgs> matmul = nullptr;
  Op<RopeKvWriteArgs> rope_kv_write = nullptr;
  Op<GatherRowsArgs> gather_rows = nullptr;
  Op<PagedAttentionArgs> paged_attention = nullptr;
  Op<RouterTopKArgs> router_top_k = nullptr;
  Op<GroupTermsArgs> group_terms = nullptr;
  Op<ExpertFfnArgs> expert_ffn = nullptr;
  Op<CombineArgs> combine = nullptr;
  Op<ArgmaxRowsArgs> argmax_rows = nullptr;
  Op<PolicyArgs> policy = nullptr;
  Op<AcceptDraftsArgs> accept_drafts = nullptr;

  size_t (*attention_scratch_bytes)(int max_rows, int heads, int head_dim) = nullptr;
  size_t (*expert_ffn_scratch_bytes)(int max_total, int hidden, int max_ffn) = nullptr;
};

// The op of an argument struct and its name in messages.
template <typename Args>
struct CudaEntry {
  CudaOps::Op<Args> run;
  const char* name;
};
inline CudaEntry<EmbeddingArgs> entry(const CudaOps& ops, const EmbeddingArgs&) {
  return {ops.embedding, "embedding"};
}
inline CudaEntry<RmsNormArgs> entry(const CudaOps& ops, const RmsNormArgs&) {
  return {ops.rms_norm, "rms_norm"};
}
inline CudaEntry<MatmulArgs> entry(const CudaOps& ops, const MatmulArgs&) {
  return {ops.matmul, "matmul"};
}
inline CudaEntry<RopeKvWriteArgs> entry(const CudaOps& ops, const RopeKvWriteArgs&) {
  return {ops.rope_kv_write, "rope_kv_write"};
}
inline CudaEntry<GatherRowsArgs> entry(const CudaOps& ops, const GatherRowsArgs&) {
  return {ops.gather_rows, "gather_rows"};
}
inline CudaEntry<PagedAttentionArgs> entry(const CudaOps& ops, const PagedAttentionArgs&) {
  return {ops.paged_attention, "paged_attention"};
}
inline CudaEntry<RouterTopKArgs> entry(const CudaOps& ops, const RouterTopKArgs&) {
  return {ops.router_top_k, "router_top_k"};
}
inline CudaEntry<ExpertFfnArgs> entry(const CudaOps& ops, const ExpertFfnArgs&) {
  return {ops.expert_ffn, "expert_ffn"};
}
inline CudaEntry<CombineArgs> entry(const CudaOps& ops, const CombineArgs&) {
  return {ops.combine, "combine"};
}
inline CudaEntry<GroupTermsArgs> entry(const CudaOps& ops, const GroupTermsArgs&) {
  return {ops.group_terms, "group_terms"};
}
inline CudaEntry<ArgmaxRowsArgs> entry(const CudaOps& ops, const ArgmaxRowsArgs&) {
  return {ops.argmax_rows, "argmax_rows"};
}
inline CudaEntry<PolicyArgs> entry(const CudaOps& ops, const PolicyArgs&) {
  return {ops.policy, "policy"};
}
inline CudaEntry<AcceptDraftsArgs> entry(const CudaOps& ops, const AcceptDraftsArgs&) {
  return {ops.accept_drafts, "accept_drafts"};
}

}  // namespace brigade::kernels
