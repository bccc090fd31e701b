// Mixture-of-Experts ops: router selection, grouping by expert, grouped expert FFN, weighted combine. The same FFN op
// serves dense layers as a single expert. All pointers are device memory unless marked host.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/ops/moe_args.h"

namespace brigade::kernels {

// INVALID_ARGUMENT naming the field when the numbers do not fit together.
absl::Status validate(const RouterRule& rule);
absl::Status router_top_k(Stream& stream, const RouterTopKArgs& args);
absl::Status group_terms(Stream& stream, const GroupTermsArgs& args);
absl::Status expert_ffn(Stream& stream, const ExpertFfnArgs& args);
// Device scratch that any call with at most these sizes needs on `device`.
size_t expert_ffn_scratch_bytes(const Device& device, int max_total, int hidden, int max_ffn);
absl::Status combine(Stream& stream, const CombineArgs& args);

}  // namespace brigade::kernels
