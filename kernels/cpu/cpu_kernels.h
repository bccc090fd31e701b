// The CPU kernels behind kernels/ops: arguments are checked and every pointer can be read here.
// Private to kernels/.
#pragma once

#include "kernels/core/thread_pool.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"
#include "kernels/ops/sampling.h"

namespace brigade::kernels::cpu {

void embedding(const EmbeddingArgs& args, ThreadPool& threads);
void rms_norm(const RmsNormArgs& args, ThreadPool& threads);
void rope_kv_write(const RopeKvWriteArgs& args, ThreadPool& threads);
void gather_rows(const GatherRowsArgs& args, ThreadPool& threads);
void paged_attention(const PagedAttentionArgs& args, ThreadPool& threads);
void router_top_k(const RouterTopKArgs& args, ThreadPool& threads);
void combine(const CombineArgs& args, ThreadPool& threads);
void group_terms(const GroupTermsArgs& args, ThreadPool& threads);
void argmax_rows(const ArgmaxRowsArgs& args, ThreadPool& threads);
void policy(const PolicyArgs& args, ThreadPool& threads);
void accept_drafts(const AcceptDraftsArgs& args, ThreadPool& threads);

}  // namespace brigade::kernels::cpu
