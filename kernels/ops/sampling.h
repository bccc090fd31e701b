// Sampling on the device, so that logits need not travel: argmax, the law of a row, the length of
// an accepted draft. All pointers are device memory. A row's result depends on that row alone.
#pragma once

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/ops/sampling_args.h"
#include "kernels/ops/sampling_pieces.h"

namespace brigade::kernels {

absl::Status argmax_rows(Stream& stream, const ArgmaxRowsArgs& args);
absl::Status policy(Stream& stream, const PolicyArgs& args);
absl::Status accept_drafts(Stream& stream, const AcceptDraftsArgs& args);
// Scratch: argmax_scratch_bytes() and policy_scratch_bytes() in sampling_pieces.h.

}  // namespace brigade::kernels
