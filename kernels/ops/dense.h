// Dense ops of the forward pass: embedding, RMS norm, matrix product, rope with KV write, row
// gather. Each checks its arguments, then runs on the stream's device. All pointers in the argument
// structs are device memory unless marked host. A result row depends on that row's inputs only; see
// kernels/README.md for the numerics contract.
#pragma once

#include "absl/status/status.h"
#include "kernels/core/device.h"
#include "kernels/ops/dense_args.h"

namespace brigade::kernels {

absl::Status embedding(Stream& stream, const EmbeddingArgs& args);
absl::Status rms_norm(Stream& stream, const RmsNormArgs& args);
absl::Status matmul(Stream& stream, const MatmulArgs& args);
absl::Status rope_kv_write(Stream& stream, const RopeKvWriteArgs& args);
absl::Status gather_rows(Stream& stream, const GatherRowsArgs& args);

}  // namespace brigade::kernels
