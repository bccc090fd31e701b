// The readable truth of every op that is not a matrix product: same argument structs with all
// pointers in host memory, sums in f64, results rounded once. For tests only; single-threaded.
#pragma once

#include <cstdint>

#include "kernels/core/dtype.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/dense.h"
#include "kernels/ops/moe.h"

namespace brigade::kernels::reference {

// Element `index` of an array of f32, bf16 or f16.
double read_element(const void* data, DType dtype, int64_t index);

void embedding(const EmbeddingArgs& args);
void rms_norm(const RmsNormArgs& args);
void rope_kv_write(const RopeKvWriteArgs& args);
void gather_rows(const GatherRowsArgs& args);
void paged_attention(const PagedAttentionArgs& args);  // softmax over all positions at once
void router_top_k(const RouterTopKArgs& args);
void combine(const CombineArgs& args);

}  // namespace brigade::kernels::reference
