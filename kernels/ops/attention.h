// Causal attention over the paged cache, for prefill rows and decode rows alike: every row names
// its sequence and its position and reads positions 0..position of that sequence back from the
// cache in the cache's dtype. KV is walked in segments of kKvSegment at absolute positions; partial
// softmax results are merged in order, so neither chunking nor the thread count can show. What a
// row does not see may hold anything, NaN too. Positions, sequences and block ids out of range
// abort: they are ours.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/ops/attention_args.h"

namespace brigade::kernels {

absl::Status paged_attention(Stream& stream, const PagedAttentionArgs& args);
// Device scratch that any call with at most these sizes needs on `device`.
size_t attention_scratch_bytes(const Device& device, int max_rows, int heads, int head_dim);

}  // namespace brigade::kernels
